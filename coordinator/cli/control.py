"""``apportion pause|continue|drain|stop RUN_DIR``: what a run that is under way is asked to do, from any process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.run_directory import is_live, ledger_of
from coordinator.cli.waiting import waiting
from edge.contracts.errors import DeadlineExpired

if TYPE_CHECKING:
    from coordinator.rounds.control import Request

PAUSE = "Example: apportion pause runs/first"
CONTINUE = "Example: apportion continue runs/first"
DRAIN = "Example: apportion drain runs/first --wait-s 600"
STOP = "Example: apportion stop runs/first --wait-s 60"

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the directory of the run")]
WaitS = Annotated[float, typer.Option("--wait-s", min=0.0, help="wait up to so many seconds for its coordinator's end")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")]

LOOK_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("pause", epilog=PAUSE)(pause)
    app.command("continue", epilog=CONTINUE)(continue_run)
    app.command("drain", epilog=DRAIN)(drain)
    app.command("stop", epilog=STOP)(stop)


@verb("pause")
def pause(run_dir: RunDirectory, as_json: AsJson = False) -> dict[str, Any]:
    """Let no further round begin; the open one goes on, and its devices may finish."""
    return _request(run_dir, "pause", "no further round begins; go on with: apportion continue", as_json=as_json)


@verb("continue")
def continue_run(run_dir: RunDirectory, as_json: AsJson = False) -> dict[str, Any]:
    """Take back what a run was asked to do: a paused one goes on, one that is to drain does not."""
    return _request(run_dir, "", "it goes on", as_json=as_json)


@verb("drain")
def drain(run_dir: RunDirectory, wait_s: WaitS = 0.0, as_json: AsJson = False) -> dict[str, Any]:
    """Stop a run once its open round is done; it can be resumed. Its coordinator ends with exit status 75."""
    told = "it stops after the open round; go on with: apportion resume"
    return _request(run_dir, "drain", told, wait_s=wait_s, as_json=as_json)


@verb("stop")
def stop(run_dir: RunDirectory, wait_s: WaitS = 0.0, as_json: AsJson = False) -> dict[str, Any]:
    """Stop a run at once; it can be resumed, and devices keep their work. Its coordinator ends with exit status 75."""
    told = "it stops now; go on with: apportion resume"
    return _request(run_dir, "stop", told, wait_s=wait_s, as_json=as_json)


def _request(run_dir: Path, asked: Request, told: str, *, as_json: bool, wait_s: float = 0.0) -> dict[str, Any]:
    """Leave the request in the run's ledger, and wait for the coordinator to end where that is asked for.

    Raises:
        LedgerError: the run is over.
        DeadlineExpired: its coordinator is still there.
    """
    from coordinator.rounds.control import ask

    with ledger_of(run_dir) as ledger:
        was_live = is_live(run_dir)
        ask(ledger, asked)
        last, current = ledger.rounds.last_committed(), ledger.rounds.open()
    done = 0 if last is None else last.round + 1
    where = f"{done} rounds are committed" + (f", round {current.round + 1} is {current.state}" if current else "")
    if not was_live:
        told = "no coordinator runs here; go on with: apportion resume"
    suffix = f" {run_dir}" if "apportion" in told else ""
    print(f"{run_dir}, {where}: {told}{suffix}", file=sys.stderr if as_json else sys.stdout)
    give_up_at = time.monotonic() + wait_s
    with waiting(f"waiting for the coordinator of {run_dir} to end, {wait_s:g} s at most"):
        while wait_s and is_live(run_dir):
            if time.monotonic() >= give_up_at:
                raise DeadlineExpired(
                    f"{run_dir}: its coordinator is still there after {wait_s:g} s; wait longer, or end its process: "
                    "the run can be resumed all the same"
                )
            time.sleep(LOOK_S)
    return {"run_dir": str(run_dir), "wish": asked or None, "was_live": was_live, "live": is_live(run_dir)}
