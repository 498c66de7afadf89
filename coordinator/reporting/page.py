"""The page around sections: one self-contained HTML file, no script, no request, light and dark, good to print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #59636e; --line: #d1d9e0; --grid: #e6eaef; --page: #ffffff;
  --card: #f6f8fa; --over: #cf222e; --c1: #0969da; --c2: #bc4c00; --c3: #1a7f37; --c4: #8250df; --c5: #9a6700;
  --c6: #bf3989; --c7: #0b7285; --c8: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --grid: #262c36;
  --page: #0d1117; --card: #151b23; --over: #f85149; --c1: #58a6ff; --c2: #f0883e; --c3: #3fb950; --c4: #bc8cff;
  --c5: #d29922; --c6: #f778ba; --c7: #39c5cf; --c8: #9198a1; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.what, p.lede { color: var(--soft); margin: .3rem 0 1rem; max-width: 60rem; }
ul { margin: .3rem 0; padding-left: 1.2rem; max-width: 60rem; } li { margin: .15rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 1rem 0 0; font-size: .9rem; }
a { color: var(--c1); } .so-far { color: var(--over); font-weight: 600; }
dl.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: .75rem; margin: 1rem 0 0; }
dl.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .5rem .75rem; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .5rem; text-align: right; white-space: nowrap; }
th.text, td.text { text-align: left; } th { color: var(--soft); font-weight: 600; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .3rem; }
figure > svg { width: 100%; max-width: 680px; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12px; } svg text.title { fill: var(--ink); }
svg .grid { stroke: var(--grid); fill: none; } svg .axis { stroke: var(--soft); fill: none; }
svg .target { stroke: var(--over); stroke-dasharray: 5 4; fill: none; }
svg .limit { stroke: var(--over); stroke-width: 2; } svg .join { stroke: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; padding-left: 3.9rem; }
.legend span { display: inline-flex; align-items: center; gap: .35rem; } svg.key { width: 22px; height: 14px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.8rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; margin: .4rem 0;
  overflow-x: auto; font: 13px/1.45 ui-monospace, monospace; } summary { cursor: pointer; margin-top: .8rem; }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --grid: #ddd; --page: #fff;
  --card: #fff; --over: #b00; --c1: #0550ae; --c2: #bc4c00; --c3: #116329; --c4: #6639ba; --c5: #7d4e00; --c6: #99286e;
  --c7: #0b7285; --c8: #57606a; } body { max-width: none; padding: 0; font-size: 11px; } nav { display: none; }
  figure, tr, dl.facts div { break-inside: avoid; } h2 { break-after: avoid; }
  .charts { grid-template-columns: 1fr 1fr; } }
"""


def page(title: str, lede: str, top: str, sections: Mapping[str, str], *, is_so_far: bool = False) -> str:
    """The page as text.

    Args:
        title: its heading; ``lede``: a sentence below it.
        top: HTML before the first section.
        sections: title -> HTML; an empty one is left out.
        is_so_far: said at the top where a run goes on.
    """
    shown = {name: body for name, body in sections.items() if body}
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in shown)
    bodies = "".join(
        f'<section><h2 id="{_anchor(name)}">{escape(name)}</h2>{body}</section>' for name, body in shown.items()
    )
    so_far = ' <span class="so-far">so far</span>' if is_so_far else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}{so_far}</h1><p class="lede">{escape(lede)}</p>{top}
<nav aria-label="sections">{links}</nav>
{bodies}
</body></html>
"""


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
