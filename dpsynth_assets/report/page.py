"""The look of an HTML report: system fonts, one column, light and dark."""

STYLE = """
:root { color-scheme: light dark; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0;
  --paper: #ffffff; --panel: #f8fafc; --warn: #b45309; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #94a3b8; --line: #334155;
  --paper: #0f172a; --panel: #1e293b; --warn: #fbbf24; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 1rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.notice { border-left: 4px solid var(--warn); background: var(--panel); padding: .7rem 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
tr.real, tr.floor, tr.ceiling { color: var(--soft); font-style: italic; }
img { display: block; max-width: 100%; margin: 1rem 0; border-radius: 6px; background: #ffffff; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .85rem; }
blockquote { margin: .3rem 0; padding: .6rem 1rem; background: var(--panel);
  white-space: pre-wrap; border-radius: 6px; }
"""
