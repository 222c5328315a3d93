const button = document.querySelector(".live button");
let paused = false;
let shown = null;
button.hidden = false;
button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? "Go on" : "Pause";
});
const reachable = () => [...document.querySelectorAll("main a, main button, main summary, main [tabindex]")];
const renew = (text) => {
  const page = new DOMParser().parseFromString(text, "text/html");
  const open = [...document.querySelectorAll("details")].map((details) => details.open);
  const focused = reachable().indexOf(document.activeElement);
  const sorted = document.querySelector("th[aria-sort]");
  for (const place of ["header h1", "header .facts", "nav", "main"]) {
    const [now, then] = [page.querySelector(place), document.querySelector(place)];
    if (now && then) then.replaceWith(now);
  }
  document.querySelectorAll("details").forEach((details, number) => (details.open = open[number] ?? details.open));
  makeSortable();
  const table = sorted && document.querySelector("table.sortable");
  if (table) sortBy(table, table.tHead.rows[0].cells[sorted.cellIndex], sorted.ariaSort === "ascending");
  reachable()[focused]?.focus({ preventScroll: true });
  if (page.querySelector(".live")) return;
  clearInterval(renewing);
  button.parentElement.remove();
};
const renewing = setInterval(async () => {
  if (paused || document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const text = await answer.text();
    if (!answer.ok || text === shown) return;
    shown = text;
    renew(text);
  } catch {
    // the server was stopped; the page stays as it is
  }
}, 3000);
