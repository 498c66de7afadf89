"""``apportion resume RUN_DIR``: go on with a run from the last thing that is on disk."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.own_code import ENV_HELP, FOREIGN_HELP, KEYS_HELP, check_foreign
from coordinator.cli.own_runs import is_own
from coordinator.cli.run import resumable, show
from coordinator.cli.run_directory import is_begun

if TYPE_CHECKING:
    from coordinator.cli.open_run import RunOptions

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
    dashboard: Annotated[
        int | None,
        typer.Option("--dashboard", metavar="PORT", min=0, max=65535, help="show the run in a browser; 0: a free port"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Resume an interrupted run; the result is the one of a run that was never interrupted."""
    from coordinator.cli.open_run import RunOptions

    options = RunOptions(local_devices=local_devices, max_epsilon=max_epsilon, dashboard_port=dashboard, quiet=quiet)
    summary = go_on(run_dir, options, allow_code=allow_code, allow_keys=allow_keys, allow_env=allow_env or ())
    show(summary, quiet=quiet, as_json=as_json)
    return summary


def go_on(
    run_dir: Path,
    options: RunOptions,
    *,
    allow_code: bool = False,
    allow_keys: bool = False,
    allow_env: Collection[str] = (),
) -> dict[str, Any]:
    """Run what is left of the run in ``run_dir``; the values of ``summary.json``.

    Args:
        allow_code, allow_keys, allow_env: what a run that was not begun here may use of this account's.

    Raises:
        ConfigError: there is no run, or one that was not begun here and names what is not allowed.
    """
    from coordinator.cli.assembly import resume_run, start_run
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
        check_foreign(config, run_dir, allow_code=allow_code, allow_keys=allow_keys, allow_env=allow_env)
    with resumable(run_dir):
        return resume_run(run_dir, options) if unbegun is None else start_run(unbegun, run_dir, options)
