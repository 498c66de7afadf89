"""``apportion fsck RUN_DIR``: whether ledger, blobs and run directory agree, and what mends them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.run_directory import is_live, ledger_of, not_begun
from coordinator.cli.waiting import waiting
from edge.system.printable import printable

if TYPE_CHECKING:
    from coordinator.blobs.garbage import Garbage
    from coordinator.ledger.ledger import Ledger

NEXT = "hold it against a copy: apportion audit verify"
EXAMPLE = "Example: apportion fsck runs/first --deep"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("fsck", epilog=EXAMPLE)(fsck)


@verb("fsck")
def fsck(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the directory of the run")],
    repair: Annotated[
        bool, typer.Option("--repair", help="set damaged blobs aside; give up the attempt that needs one")
    ] = False,
    gc: Annotated[bool, typer.Option("--gc", help="delete garbage older than an hour")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="read every blob and hold it against its digest")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Hold a run's ledger, blobs and files against each other; exit status 1 when something is not as it should be.

    Without --repair and --gc nothing is changed, and a coordinator may be running beside it.
    """
    from coordinator.blobs.garbage import collect_garbage
    from coordinator.cli.run_directory import lock_run

    if not_begun(run_dir) is not None:
        return _not_begun(run_dir, is_shown=not as_json)
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(ledger_of(run_dir))
        live = is_live(run_dir)
        if repair:
            stack.enter_context(lock_run(run_dir))
        with waiting(f"checking {run_dir}" + (", every blob read" if deep else "")):
            values = audit_run(run_dir, ledger, deep=deep, repair_too=repair)
        faults, garbage, blobs = values.pop("faults"), values.pop("garbage"), values.pop("store")
        if gc and garbage is not None:
            garbage = collect_garbage(ledger, blobs)
        stored = list(blobs.entries())
        state = ledger.federation().state
    result = {
        "ok": not faults,
        "run_dir": str(run_dir),
        "state": state,
        "live": live,
        "deep": deep,
        "findings": [vars(fault) for fault in faults],
        "repaired": values["repaired"],
        "blobs": {"count": len(stored), "bytes": sum(entry.size for entry in stored)},
        "garbage": _garbage_values(garbage, collected=gc),
    }
    if faults:
        result["error"] = {
            "code": "findings",
            "message": f"{len(faults)} findings, the first one {faults[0].subject[:12]}: {faults[0].detail}",
            "hint": faults[0].step,
        }
    if not as_json:
        _show(result, blobs_at=_place(blobs))
    return result


def _not_begun(run_dir: Path, *, is_shown: bool) -> dict[str, Any]:
    """The result for a directory whose process was killed before the run's first row: there is nothing to look at."""
    if is_shown:
        print(f"the run was not begun yet, and nothing of it is lost; begin it: apportion resume {run_dir}")
    nothing = {"count": 0, "bytes": 0}
    return {
        "ok": True,
        "run_dir": str(run_dir),
        "state": "not-begun",
        "live": is_live(run_dir),
        "deep": False,
        "findings": [],
        "repaired": [],
        "blobs": nothing,
        "garbage": {"shared": False, **nothing, "young": 0, "collected": False},
    }


def audit_run(run_dir: Path, ledger: Ledger, *, deep: bool, repair_too: bool) -> dict[str, Any]:
    """``faults``, ``repaired`` in words, ``garbage`` (None where other runs share the folder) and the ``store``."""
    from coordinator.blobs.audit import Fault, blob_faults, repair, run_dir_faults
    from coordinator.blobs.garbage import find_garbage, is_collectable
    from coordinator.blobs.opening import open_blobs
    from coordinator.run_file.loading import load_config_text

    config = load_config_text(ledger.federation().config, folder=run_dir)
    blobs = open_blobs(config, run_dir, tidy=False)
    done: list[str] = []
    faults = blob_faults(ledger, blobs, deep=deep)
    if repair_too and faults:
        done = repair(ledger, blobs, faults)
        ledger.audit_log.add("store-repaired", details={"done": done})
        faults = blob_faults(ledger, blobs, deep=deep)
    ledger_faults = [
        Fault("ledger", "", words, "restore the ledger from a backup") for words in ledger.audit.findings()
    ]
    ledger_faults += [Fault("audit-log", "", words, NEXT) for words in ledger.audit_log.checked().findings]
    return {
        "faults": [*ledger_faults, *faults, *run_dir_faults(run_dir, ledger)],
        "repaired": done,
        "garbage": find_garbage(ledger, blobs) if is_collectable(ledger, blobs) else None,
        "store": blobs,
    }


def _garbage_values(garbage: Garbage | None, *, collected: bool) -> dict[str, Any]:
    if garbage is None:
        return {"shared": True, "count": 0, "bytes": 0, "young": 0, "collected": False}
    return {
        "shared": False,
        "count": garbage.count,
        "bytes": garbage.size,
        "young": garbage.young,
        "collected": collected,
    }


def _short(finding: dict[str, str]) -> str:
    return (finding["subject"][:12] if finding["kind"] == "blob" else finding["subject"]) or "-"


def _place(blobs: Any) -> str:
    return str(blobs.remote.url if hasattr(blobs, "remote") else blobs.root)


def _show(result: dict[str, Any], *, blobs_at: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if result["live"]:
        console.print("a coordinator is running here: what it has not finished may be shown as missing")
    for words in result["repaired"]:
        console.print(printable(f"repaired: {words}"), markup=False, soft_wrap=True)
    if result["findings"]:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("what", "which", "found", "next"):
            table.add_column(name, overflow="fold")
        for finding in result["findings"]:
            cells = (finding["kind"], _short(finding), finding["detail"], finding["step"])
            table.add_row(*(Text(printable(cell)) for cell in cells))
        console.print(table)
    blobs, garbage = result["blobs"], result["garbage"]
    console.print(f"{blobs['count']} blobs, {blobs['bytes'] / 1e6:.1f} MB, in {blobs_at}", markup=False)
    if garbage["shared"]:
        console.print("garbage is not looked for: other runs keep their blobs in the same folder")
    elif garbage["count"] or garbage["young"]:
        done = "deleted" if garbage["collected"] else "to delete with --gc"
        console.print(
            f"garbage: {garbage['count']} files, {garbage['bytes'] / 1e6:.1f} MB, {done}; "
            f"{garbage['young']} more are too young to tell"
        )
    count = len(result["findings"])
    console.print("clean" if not count else f"{count} finding{'s' * (count > 1)}")
