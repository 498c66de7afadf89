"""Collects the measurements that owners have shared into the table of docs/hardware/README.md.

python -m benchmarks.hardware_table            writes the table; ends with 1 and names every file that is refused
python -m benchmarks.hardware_table --check    writes nothing; ends with 1 where the table is another one
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from edge.measuring.results import BUSY_SHARE
from edge.sharing.plausibility import implausible
from edge.sharing.signed_file import FileRefused, SharedFile, read_shared
from profiles.known_devices import known_device

PAGE = Path("docs/hardware/README.md")
FILES = Path("docs/hardware/shared")
BEGIN, END = "<!-- shared measurements: begin -->", "<!-- shared measurements: end -->"
SHOWN = (("mlp:0.125", 64), ("conv2:0.125", 32), ("resnet8", 32), ("resnet20", 8))
"""Settings of a quick ladder, small to large: one column each."""

NONE_YET = "Nobody has shared one yet."
MB = 2**20


def accepted(folder: Path) -> tuple[dict[str, SharedFile], list[str]]:
    """File name -> file, of those that hold; and why each other one is refused."""
    found: dict[str, SharedFile] = {}
    refused: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            file = read_shared(path)
        except FileRefused as error:
            refused.append(str(error))
            continue
        problems = list(implausible(file.measurement))
        same = [name for name, other in found.items() if other.measurement == file.measurement]
        problems += [f"the same measurement as {name}" for name in same]
        if problems:
            refused.append(f"{path.name}: " + "; ".join(problems))
        else:
            found[path.name] = file
    return found, refused


def table(files: dict[str, SharedFile]) -> str:
    """The table in Markdown."""
    if not files:
        return NONE_YET
    settings = [f"{shape}, batch {batch}" for shape, batch in SHOWN]
    head = ["device", "memory", "system", "runtime", *settings, "file"]
    rows = [_row(name, file, runtime) for name, file in files.items() for runtime in _runtimes(file)]
    lines = [head, ["---"] * len(head), *sorted(rows)]
    return "\n".join("| " + " | ".join(_safe(cell) for cell in line) + " |" for line in lines)


def _runtimes(file: SharedFile) -> list[str]:
    return sorted({row.runtime for row in file.measurement.rows})


def _row(name: str, file: SharedFile, runtime: str) -> list[str]:
    device = file.measurement.device
    title = known_device(device.known_as).title if device.known_as else device.board or device.cpu_model
    cores = ", ".join(f"{group.count} x {group.name or device.machine}" for group in device.cores)
    version = next(row.runtime_version for row in file.measurement.rows if row.runtime == runtime)
    return [
        f"{title} ({cores})",
        f"{device.ram_bytes / 2**30:.1f} GiB",
        device.os_name or device.kernel,
        f"{runtime} {version}",
        *(_setting(file, runtime, shape, batch) for shape, batch in SHOWN),
        f"[{file.measurement.measured_on}](shared/{name})",
    ]


def _setting(file: SharedFile, runtime: str, shape: str, batch: int) -> str:
    """``12.5 ms, 7.1 with 4 threads, 82 MB``."""
    rows = [
        row
        for row in file.measurement.rows
        if (row.runtime, row.shape, row.batch) == (runtime, shape, batch) and row.outcome == "measured"
    ]
    if not rows:
        return ""
    rows.sort(key=lambda row: row.threads)
    first, last = rows[0], rows[-1]
    mark = "*" if first.threads == 1 and first.cpu_share < BUSY_SHARE else ""
    more = f", {last.step_ms_p50:.3g} with {last.threads} threads" if last is not first else ""
    return f"{first.step_ms_p50:.3g}{mark} ms{more}, {max(row.peak_bytes for row in rows) / MB:.0f} MB"


def _safe(cell: str) -> str:
    """A cell of somebody else's words: no markup of theirs, no end of the cell."""
    return "".join(" " if c in "|\n\r`<>" or not c.isprintable() else c for c in cell)


def with_table(page: str, new: str) -> str:
    """``page`` with ``new`` between its marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: the lines {BEGIN} and {END} are gone; put them where the table is to be")
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None, *, page: Path = PAGE, folder: Path = FILES) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardware_table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where the table is another one")
    chosen = parser.parse_args(arguments)
    files, refused = accepted(folder)
    for line in refused:
        print(f"refused: {line}", file=sys.stderr)
    text = page.read_text(encoding="utf-8")
    new = with_table(text, table(files))
    if chosen.check and new != text:
        print(f"{page}: the table is not that of {folder}; python -m benchmarks.hardware_table", file=sys.stderr)
        return 1
    if not chosen.check:
        page.write_text(new, encoding="utf-8")
        print(f"{len(files)} files in the table of {page}, {len(refused)} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
