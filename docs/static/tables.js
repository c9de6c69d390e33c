// On a phone, a table that is wider than the screen becomes a list: each row a card, and above each cell the name of its
// column (site.css). A table that fits stays a table.
const PHONE = matchMedia("(max-width: 600px)");

function layOut(table) {
  const place = table.closest(".pst-scrollable-table-container") || table.parentElement;
  table.classList.remove("stacked");
  table.classList.toggle("stacked", PHONE.matches && table.scrollWidth > place.clientWidth + 1);
}

const tables = [...document.querySelectorAll(".bd-article table")].filter((table) =>
  table.tHead && !table.closest(".play") && !table.querySelector("td img"));
for (const table of tables) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  for (const body of table.tBodies) {
    for (const row of body.rows) {
      [...row.cells].forEach((cell, column) => (cell.dataset.column = names[column]));
    }
  }
}
const layOutAll = () => tables.forEach(layOut);
layOutAll();
PHONE.addEventListener("change", layOutAll);
