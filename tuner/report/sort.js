for (const button of document.querySelectorAll("table.sorts thead button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, row = head.parentElement;
    const body = row.closest("table").tBodies[0], column = [...row.children].indexOf(head);
    const falls = head.getAttribute("aria-sort") === "descending";
    for (const other of row.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "ascending" : "descending");
    const key = line => {
      const cell = line.children[column], number = cell.dataset.value;
      return number === undefined ? cell.textContent.trim() : Number(number);
    };
    const compare = (a, b) => typeof a === "number" && typeof b === "number"
      ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    const sign = falls ? 1 : -1;
    body.append(...[...body.rows].sort((a, b) => sign * compare(key(a), key(b))));
  });
}
