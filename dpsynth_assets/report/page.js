
const value = (cell) => {
  const text = cell.textContent.trim().replaceAll(',', '');
  return text.startsWith('∞') || text === 'inf' ? Infinity : parseFloat(text);
};
const order = (a, b, numeric) => {
  if (!numeric) return a.textContent.trim().localeCompare(b.textContent.trim());
  return value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0;
};
const sort = (table, head, place) => {
  const falling = head.getAttribute('aria-sort') === 'ascending';
  const numeric = head.classList.contains('number');
  const known = (row) => !numeric || !Number.isNaN(value(row.cells[place]));
  const rows = [...table.tBodies[0].rows];
  const shown = rows.filter(known).sort((a, b) =>
    (falling ? -1 : 1) * order(a.cells[place], b.cells[place], numeric));
  for (const other of head.parentElement.cells) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
  table.tBodies[0].append(...shown, ...rows.filter((row) => !known(row)));
};
for (const table of document.querySelectorAll('table:not(.texts)')) {
  if (table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => sort(table, head, place));
  });
}
let opened = [];
addEventListener('beforeprint', () => {
  opened = [...document.querySelectorAll('details:not([open])')];
  for (const fold of opened) fold.open = true;
});
addEventListener('afterprint', () => { for (const fold of opened) fold.open = false; });
