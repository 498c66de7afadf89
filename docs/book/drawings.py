"""The drawings of the book, SVG that follows a light or dark page: ``python -m docs.book.drawings`` writes them."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "drawings"
_STYLE = """\
.drawing { --ink: #1f2328; --soft: #59636e; --line: #8c959f; --fill: #f6f8fa; --blue: #ddf4ff; --green: #dafbe1;
 --sand: #fff1c2; font: 14px system-ui, sans-serif; max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { .drawing { --ink: #e6edf3; --soft: #9198a1; --line: #656c76; --fill: #21262d;
 --blue: #12385c; --green: #12452a; --sand: #4d3d0f; } }
.drawing text { fill: var(--ink); } .drawing .soft { fill: var(--soft); } .drawing .head { font-weight: 600; }
.drawing rect { stroke: var(--line); } .drawing path { stroke: var(--soft); stroke-width: 1.5; fill: none; }
.drawing .tip { fill: var(--soft); stroke: none; }"""
"""Colours of both kinds of page; the book's own style sheet sets the same for a reader who switches."""
_COLOURS = {name: f"var(--{name})" for name in ("fill", "blue", "green", "sand", "soft")}


class _Sheet:
    """A drawing in the making; coordinates are pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *lines: str, fill: str = "fill") -> None:
        """A rectangle with lines of text in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{_COLOURS[fill]}"/>'
        )
        for index, line in enumerate(lines):
            offset = (index - (len(lines) - 1) / 2) * 18 + 5
            self.text(x + width / 2, y + height / 2 + offset, line, anchor="middle")

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> None:
        """One line of text; ``kind`` is ``soft`` or ``head``."""
        named = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{named}>{escape(text)}</text>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """A straight arrow."""
        length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
        along_x, along_y = (to_x - x) / length, (to_y - y) / length
        back_x, back_y = to_x - 9 * along_x, to_y - 9 * along_y
        side_x, side_y = -4.5 * along_y, 4.5 * along_x
        self._parts.append(f'<path d="M{x:g} {y:g}L{back_x:g} {back_y:g}"/>')
        self._parts.append(
            f'<path class="tip" d="M{to_x:g} {to_y:g}L{back_x + side_x:.1f} {back_y + side_y:.1f}'
            f'L{back_x - side_x:.1f} {back_y - side_y:.1f}Z"/>'
        )

    def svg(self) -> str:
        """The drawing; without an empty line, so that a page can hold it as it is."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" role="img" {size}>'
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, title, "<style>", _STYLE, "</style>", *self._parts, "</svg>", ""])


def cut() -> str:
    """One model, three devices, three cuts: the demo's figures (docs/measurements/README.md)."""
    sheet = _Sheet(760, 330, "One large layer, cut for three devices: whole, rank 1/5 and rank 1/32")
    sheet.text(20, 28, "The global model's large layer", kind="head")
    sheet.text(20, 48, "2048 x 2048 weights", kind="soft")
    sheet.box(20, 62, 150, 150, fill="blue")
    sheet.text(20, 240, "at the coordinator", kind="soft")
    rows = [(20, "2 devices of 160 MB", "whole", 135, 160), (125, "3 devices of 115 MB", "rank 1/5", 110, 115)]
    rows.append((230, "3 devices of 90 MB", "rank 1/32", 86, 90))
    for y, devices, level, peak, budget in rows:
        sheet.arrow(182, 137, 258, y + 40)
        if level == "whole":
            sheet.box(280, y, 80, 80, fill="blue")
        else:
            thin = 16 if level == "rank 1/5" else 4
            sheet.box(280, y, thin, 80, fill="blue")
            sheet.text(280 + thin + 10, y + 45, "x", anchor="middle")
            sheet.box(280 + thin + 20, y, 80, thin, fill="blue")
        sheet.text(410, y + 18, devices, kind="head")
        sheet.text(580, y + 18, f"gets: {level}")
        sheet.box(410, y + 32, 300, 18)
        sheet.box(410, y + 32, 300 * peak / budget, 18, fill="green")
        sheet.text(410, y + 70, f"a training step needs {peak} MB of {budget} MB", kind="soft")
    return sheet.svg()


def step() -> str:
    """What a device is sent: one graph that holds a whole training step."""
    sheet = _Sheet(760, 300, "A compiled step: forward, loss, backward and optimizer are one graph")
    sheet.text(380, 24, "train.onnx: one graph, standard operators, no weights inside", anchor="middle", kind="head")
    sheet.box(190, 44, 380, 110)
    for index, (name, fill) in enumerate(
        [("forward", "blue"), ("loss", "sand"), ("backward", "blue"), ("optimizer", "green")]
    ):
        sheet.box(204 + index * 92, 78, 76, 44, name, fill=fill)
        if index:
            sheet.arrow(204 + index * 92 - 15, 100, 204 + index * 92, 100)
    for y, name in ((62, "batch: x, y"), (100, "weights"), (138, "optimizer state, lr")):
        sheet.text(160, y + 4, name, anchor="end")
        sheet.arrow(166, y, 190, y)
    for y, name in ((62, "loss"), (100, "new weights"), (138, "new state")):
        sheet.arrow(570, y, 594, y)
        sheet.text(602, y + 4, name)
    sheet.box(
        190,
        196,
        380,
        60,
        "before any device gets it: held against torch in",
        "float64, loss, every gradient, three steps",
        fill="sand",
    )
    sheet.arrow(380, 196, 380, 154)
    sheet.text(
        380,
        282,
        "The device needs ONNX Runtime and NumPy. It has no torch and no method.",
        anchor="middle",
        kind="soft",
    )
    return sheet.svg()


def round_() -> str:
    """One round, from the plan to the next model."""
    sheet = _Sheet(760, 380, "One round between the coordinator and a device")
    sheet.text(140, 24, "coordinator", anchor="middle", kind="head")
    sheet.text(620, 24, "each device", anchor="middle", kind="head")
    left = [
        (40, "1 plan: who, and which level fits"),
        (84, "2 cut the submodel"),
        (128, "3 export the step, once per shape"),
    ]
    left += [(172, "4 publish orders")]
    for y, text in left:
        sheet.box(10, y, 260, 34, text, fill="blue")
    sheet.box(490, 172, 260, 34, "check memory, accept or refuse", fill="green")
    sheet.box(490, 240, 260, 34, "5 train on its own data", fill="green")
    sheet.arrow(270, 184, 490, 184)
    sheet.text(380, 176, "order", anchor="middle", kind="soft")
    sheet.arrow(270, 200, 490, 250)
    sheet.text(330, 246, "weights; graph once", anchor="middle", kind="soft")
    sheet.arrow(490, 266, 270, 300)
    sheet.text(430, 306, "update, report", anchor="middle", kind="soft")
    for y, text in ((284, "6 check and aggregate"), (328, "7 refresh, 8 commit the next model")):
        sheet.box(10, y, 260, 34, text, fill="blue")
    sheet.text(490, 350, "The examples never leave the device.", kind="soft")
    return sheet.svg()


def layers(mermaid: str) -> str:
    """The layers of a mermaid flowchart of chains, each box above those that it may import."""
    groups: list[tuple[str, list[str]]] = []
    for line in mermaid.splitlines():
        if group := re.match(r"\s*subgraph (\w+)", line):
            groups.append((group[1], []))
        for label in re.findall(r'\["([^"]+)"\]', line):
            if label not in groups[-1][1]:
                groups[-1][1].append(label)
    rest = re.findall(r"\w+", mermaid.strip().splitlines()[-1])
    tallest = max(len(boxes) for _, boxes in groups)
    sheet = _Sheet(840, 70 + tallest * 34 + 20, f"Layers: {' may import '.join(rest)}")
    sheet.text(10, 24, f"Imports point down, and from left to right: {', '.join(rest)}.", kind="soft")
    for column, (name, boxes) in enumerate(groups):
        x, width = (10, 530) if column == 0 else (555, 275)
        sheet.text(x, 54, name, kind="head")
        for index, label in enumerate(boxes):
            sheet.box(x, 64 + index * 34, width, 28, label, fill="blue" if column == 0 else "green")
    return sheet.svg()


DRAWINGS = {"cut": cut, "step": step, "round": round_}
"""File name -> what draws it."""


def main() -> None:
    """Write every drawing."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
