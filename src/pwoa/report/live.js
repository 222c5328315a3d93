const button = document.querySelector(".live button");
let paused = false;
let shown = null;
button.hidden = false;
button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? "Go on" : "Pause";
});
setInterval(async () => {
  if (paused || document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const text = await answer.text();
    if (!answer.ok || text === shown) return;
    shown = text;
    const page = new DOMParser().parseFromString(text, "text/html");
    const open = [...document.querySelectorAll("details")].map((details) => details.open);
    for (const place of ["header h1", "header .facts", "main"]) {
      const [now, then] = [page.querySelector(place), document.querySelector(place)];
      if (now && then) then.replaceWith(now);
    }
    document.querySelectorAll("details").forEach((details, number) => (details.open = open[number] ?? details.open));
  } catch {
    button.textContent = "Pause";
  }
}, 3000);
