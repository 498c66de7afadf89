"""``apportion resume RUN_DIR``: go on with a run from the last thing that is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.own_code import HELP, check_code, is_own, named_by
from coordinator.cli.run import resumable, show
from coordinator.cli.run_directory import is_begun

EXAMPLE = "Example: apportion resume runs/first"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("resume", epilog=EXAMPLE)(resume)


@verb("resume")
def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the directory of the run")],
    local_devices: Annotated[
        int | None, typer.Option(min=0, help="agents to start here; unset: those of cohort.local")
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(min=0.0, help="spend up to this epsilon, in place of privacy.max-epsilon")
    ] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help=f"{HELP}; needed where others can write to RUN_DIR")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Resume an interrupted run; the result is the one of a run that was never interrupted."""
    from coordinator.cli.assembly import RunOptions, resume_run, start_run
    from coordinator.cli.run_directory import ledger_of, not_begun
    from coordinator.run_file.loading import load_config_text

    unbegun = not_begun(run_dir)
    if unbegun is None and not is_begun(run_dir):
        raise parse_problem("RUN_DIR", f"{run_dir} holds no run (no ledger.sqlite in it); begin one with apportion run")
    if unbegun is None:
        with ledger_of(run_dir) as ledger:
            config = load_config_text(ledger.federation().config, folder=run_dir)
    else:
        config = unbegun
    check_code(named_by(config), run_dir, is_allowed=allow_code or is_own(run_dir))
    options = RunOptions(local_devices=local_devices, max_epsilon=max_epsilon, quiet=quiet)
    with resumable(run_dir):
        summary = resume_run(run_dir, options) if unbegun is None else start_run(unbegun, run_dir, options)
    show(summary, quiet=quiet, as_json=as_json)
    return summary
