"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  for (const [place, head] of [...heads].entries()) {
    head.querySelector("button").addEventListener("click", () => {
      const isNumber = head.classList.contains("num");
      // numbers are first asked for from the highest, names from A
      const previous = head.getAttribute("aria-sort");
      const descending = previous ? previous === "ascending" : isNumber;
      const keyOf = (row) => row.cells[place].dataset.key;
      const rows = [...table.tBodies[0].rows].sort((one, two) => {
        const [a, b] = [keyOf(one), keyOf(two)];
        if ((a === "") !== (b === "")) return a === "" ? 1 : -1; // what is missing stays last
        const order = isNumber ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
        return descending ? -order : order;
      });
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      table.tBodies[0].append(...rows);
    });
  }
}
const openTarget = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", openTarget);
openTarget();
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
