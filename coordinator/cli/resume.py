"""``apportion resume RUN_DIR``: go on with a run from the last thing that is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.own_code import ENV_HELP, FOREIGN_HELP, KEYS_HELP, check_foreign
from coordinator.cli.own_runs import is_own
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
    allow_code: Annotated[bool, typer.Option("--allow-code", help=FOREIGN_HELP)] = False,
    allow_keys: Annotated[bool, typer.Option("--allow-keys", help=KEYS_HELP)] = False,
    allow_env: Annotated[list[str] | None, typer.Option(metavar="NAME", help=ENV_HELP)] = None,
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
            run = ledger.federation()
        config, is_ours = load_config_text(run.config, folder=run_dir), is_own(run)
    else:
        config, is_ours = unbegun, False
    if not is_ours:
        check_foreign(config, run_dir, allow_code=allow_code, allow_keys=allow_keys, allow_env=allow_env or ())
    options = RunOptions(local_devices=local_devices, max_epsilon=max_epsilon, quiet=quiet)
    with resumable(run_dir):
        summary = resume_run(run_dir, options) if unbegun is None else start_run(unbegun, run_dir, options)
    show(summary, quiet=quiet, as_json=as_json)
    return summary
