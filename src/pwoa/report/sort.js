const sortBy = (table, head, rising) => {
  const heads = [...table.tHead.rows[0].cells];
  const column = heads.indexOf(head);
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
  const known = (row) => key(row) !== "";
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => known(b) - known(a) || (rising ? 1 : -1) * order(key(a), key(b)));
  table.tBodies[0].append(...rows);
};
const makeSortable = () => {
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => sortBy(table, head, head.getAttribute("aria-sort") === "descending"));
    }
  }
};
makeSortable();
