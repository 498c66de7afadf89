"""``apportion quarantine ls|show|add|release RUN_DIR``: updates set aside, the evidence, and letting devices back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.run_directory import ledger_of

if TYPE_CHECKING:
    from coordinator.ledger.ledger import Ledger
    from coordinator.ledger.quarantine import Quarantined

EXAMPLE = "Example: apportion quarantine ls runs/first"

quarantine = typer.Typer(help="Updates that a run set aside.", no_args_is_help=True)

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the directory of the run")]
Json = Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(quarantine, name="quarantine", epilog=EXAMPLE)


@quarantine.command("ls", epilog=EXAMPLE)
@verb("quarantine-ls")
def ls(run_dir: RunDir, as_json: Json = False) -> dict[str, Any]:
    """Every update in quarantine, and which devices sit out."""
    with ledger_of(run_dir) as ledger:
        entries = ledger.quarantine.all()
        barred = {
            name: s.barred_until for name, s in ledger.reliabilities.all().items() if s.barred_until > _next(ledger)
        }
    if not as_json:
        for entry in entries:
            e = entry.evidence
            why = e.get("reason") or f"{e.get('rms', 0):.3g} against a median of {e.get('median', 0):.3g}"
            print(f"{entry.assignment_id[:12]}  round {entry.round + 1:<5} {entry.device:<20} {entry.code}: {why}")
        for device, until in barred.items():
            print(f"{device} sits out until round {until + 1}")
        print(f"{len(entries)} updates in quarantine, {len(barred)} devices barred")
    return {"quarantined": [_values(entry) for entry in entries], "barred_until": barred}


@quarantine.command("show", epilog="Example: apportion quarantine show runs/first 3f0c2a")
@verb("quarantine-show")
def show(
    run_dir: RunDir,
    assignment: Annotated[str, typer.Argument(metavar="ID", help="of the assignment, or its first characters")],
    as_json: Json = False,
) -> dict[str, Any]:
    """The evidence for one update, and the file that holds it."""
    with ledger_of(run_dir) as ledger:
        found = _values(_find(ledger, assignment))
    if not as_json:
        print(json.dumps(found, indent=2))
    return found


@quarantine.command("add", epilog="Example: apportion quarantine add runs/first --device pi-07")
@verb("quarantine-add")
def add(
    run_dir: RunDir,
    device: Annotated[str, typer.Option("--device", help="whose update of the open round is to count in no sum")],
    reason: Annotated[str, typer.Option("--reason", help="kept with it")] = "by hand",
    as_json: Json = False,
) -> dict[str, Any]:
    """Set a device's update of the open round aside, also when its sum has begun and cannot be made; then resume."""
    from coordinator.defences.by_hand import set_aside

    with ledger_of(run_dir) as ledger:
        entry = set_aside(ledger, device, reason)
        found = _values(entry)
    if not as_json:
        print(f"{device}: its update of round {entry.round + 1} is set aside; resume the run")
    return found


@quarantine.command("release", epilog="Example: apportion quarantine release runs/first --device pi-07")
@verb("quarantine-release")
def release(
    run_dir: RunDir,
    device: Annotated[str, typer.Option("--device", help="whose updates to let go, and whose reliability to clear")],
    as_json: Json = False,
) -> dict[str, Any]:
    """Drop a device's updates from quarantine and let it take part again from the next round on; none is counted."""
    from coordinator.defences.by_hand import let_back

    with ledger_of(run_dir) as ledger:
        done = let_back(ledger, device)
    if not as_json:
        print(f"{device}: {done.released} updates dropped; it may take part from round {done.barred_until + 1} on")
    return {"device": device, "released": done.released, "barred_until": done.barred_until}


def _find(ledger: Ledger, start: str) -> Quarantined:
    from edge.contracts.errors import LedgerError

    found = [entry for entry in ledger.quarantine.all() if entry.assignment_id.startswith(start)]
    if len(found) != 1:
        raise LedgerError(
            f"{len(found)} updates in quarantine begin with '{start[:64]}', one expected; see `apportion quarantine ls`"
        )
    return found[0]


def _values(entry: Quarantined) -> dict[str, Any]:
    return {
        "assignment_id": entry.assignment_id,
        "device": entry.device,
        "round": entry.round,
        "code": entry.code,
        "created_at": entry.created_at,
        "evidence": entry.evidence,
    }


def _next(ledger: Ledger) -> int:
    """Index of the round after the last committed one."""
    last = ledger.rounds.last_committed()
    return 0 if last is None else last.round + 1
