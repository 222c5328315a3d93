for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
      const known = (row) => key(row) !== "";
      const rows = [...body.rows];
      rows.sort((a, b) => known(b) - known(a) || (rising ? 1 : -1) * order(key(a), key(b)));
      body.append(...rows);
    });
  });
}
