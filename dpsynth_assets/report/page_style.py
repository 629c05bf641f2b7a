"""Style, script and content policy of the HTML pages.

The script sorts tables, and opens folds for the printer. The policy names its hash, so that a
browser runs this script and no other, whatever a page's texts hold.
"""

import base64
import hashlib
from typing import Final

LIGHT: Final = {
    "text": "#1c1e21", "page": "#ffffff", "soft": "#f1f4f7", "line": "#c9d0d8",
    "quiet": "#525c66", "link": "#0b57a4", "alert": "#8f2800", "alert-page": "#fff1e8",
}  # fmt: skip
DARK: Final = {
    "text": "#e6e8eb", "page": "#15181c", "soft": "#20262c", "line": "#454f59",
    "quiet": "#adb6c0", "link": "#8cbcff", "alert": "#ffb38a", "alert-page": "#3a1e10",
}  # fmt: skip
"""Colours by their use; every colour of text has a contrast of 4.5 with each it may stand on."""

_RULES = """
* { box-sizing: border-box; }
html { scroll-padding-top: 3.5rem; }
body { margin: 0; color: var(--text); background: var(--page);
  font: 16px/1.5 system-ui, sans-serif; }
main, footer { padding: 0 clamp(.8rem, 2vw, 2rem) 3rem; }
h1 { font-size: 1.6rem; } h3 { font-size: 1rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; }
p, dl, li { max-width: 90ch; } p { margin: .6rem 0; }
a { color: var(--link); }
.skip { position: absolute; left: -999rem; } .skip:focus { position: static; }
nav { position: sticky; top: 0; z-index: 3; background: var(--page);
  border-bottom: 1px solid var(--line); padding: .4rem clamp(.8rem, 2vw, 2rem); }
nav ul { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; list-style: none; margin: 0; padding: 0;
  font-size: .92rem; }
nav a { display: inline-block; padding: .25rem 0; }
.notice { border: 2px solid var(--alert); border-radius: 6px; padding: .7rem 1rem; max-width: none;
  color: var(--alert); background: var(--alert-page); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem;
  max-width: none; margin: 1rem 0; }
.tiles > div { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .9rem;
  background: var(--soft); }
.tiles dt { color: var(--quiet); font-size: .88rem; }
.tiles dd { margin: 0; } .tiles dd:first-of-type { font-size: 1.4rem; font-weight: 600;
  overflow-wrap: anywhere; line-height: 1.3; } .tiles dd + dd { font-size: .88rem; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; line-height: 1.4; }
caption { text-align: left; color: var(--quiet); padding: .2rem 0; font-size: .92rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; font-weight: inherit; overflow-wrap: break-word; }
thead th { background: var(--soft); vertical-align: bottom; font-weight: 600; }
tbody th, thead th:first-child { position: sticky; left: 0; z-index: 1; }
tbody th { background: var(--page); font-weight: 600; }
tbody tr:hover > * { background: var(--soft); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.whole { white-space: nowrap; }
.digest { overflow-wrap: anywhere; min-width: 9rem; font-family: ui-monospace, monospace; }
.texts td { min-width: 14rem; white-space: pre-line; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-align: inherit; text-decoration: underline dotted; text-underline-offset: .2em; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
details { margin: .6rem 0; } td details { margin: 0; min-width: 8rem; }
summary { cursor: pointer; color: var(--link); }
.gallery { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
figure { margin: 0; } figcaption { color: var(--quiet); font-size: .88rem; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
.facts { display: grid; grid-template-columns: fit-content(22rem) 1fr; gap: .15rem 1rem;
  font-size: .88rem; max-width: none; margin: .4rem 0; }
.facts dt { color: var(--quiet); } .facts dd { margin: 0; overflow-wrap: anywhere; }
td .facts { min-width: 16rem; }
@media (max-width: 40rem) { nav { position: static; } .facts { grid-template-columns: 1fr; }
  .facts dd { margin-bottom: .4rem; } tbody th { max-width: 9rem; overflow-wrap: anywhere; }
  tbody th:not(.number) { min-width: 7rem; } }
@media print { @page { size: landscape; margin: 1cm; } body { font-size: 11px; }
  nav, .skip { display: none; } .wide { overflow: visible; } main { padding: 0; }
  th button { text-decoration: none; } tr, figure, .tiles > div { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; } tbody th, thead th:first-child { position: static; }
  .gallery { grid-template-columns: 1fr 1fr; } table { font-size: .8rem; } }
"""

SCRIPT: Final = """
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
"""


def _colors(palette: dict[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in palette.items())


STYLE: Final = (
    f":root {{ color-scheme: light dark; {_colors(LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_colors(DARK)} }} }}\n"
    # Paper is white, whatever the screen is.
    f"@media print {{ :root {{ color-scheme: light; {_colors(LIGHT)} }} }}{_RULES}"
)
POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
)
