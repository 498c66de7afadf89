"""``apportion run CONFIG``: a new federation from a run file."""

from __future__ import annotations

import contextlib
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.own_code import ENV_HELP, check_variable
from coordinator.cli.run_directory import holds_run, is_begun
from coordinator.config.run_config import RunConfig
from edge.contracts.errors import ApportionError

EXAMPLE = "Example: apportion run examples/digits.toml --run-dir runs/first --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("run", epilog=EXAMPLE)(run)


@verb("run")
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the run file (TOML)")],
    run_dir: Annotated[
        Path | None, typer.Option(help="where the run leaves everything; runs/<name>-<time> if unset")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="instead of federation.seed")] = None,
    local_devices: Annotated[
        int | None, typer.Option(min=0, help="agents to start here; unset: those of cohort.local")
    ] = None,
    allow_env: Annotated[list[str] | None, typer.Option(metavar="NAME", help=ENV_HELP)] = None,
    dashboard: Annotated[
        int | None,
        typer.Option("--dashboard", metavar="PORT", min=0, max=65535, help="show the run in a browser; 0: a free port"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Start a federation and run it to its last round."""
    from coordinator.cli.assembly import start_run
    from coordinator.cli.open_run import RunOptions
    from coordinator.run_file.loading import load_config

    settings = with_seed(load_config(config), seed)
    check_variable(settings, allow_env or ())
    folder = run_dir or default_run_dir(settings)
    check_new(folder)
    with resumable(folder):
        summary = start_run(
            settings, folder, RunOptions(local_devices=local_devices, dashboard_port=dashboard, quiet=quiet)
        )
    show(summary, quiet=quiet, as_json=as_json)
    return summary


def with_seed(config: RunConfig, seed: int | None) -> RunConfig:
    """``config`` with another seed, or itself."""
    if seed is None:
        return config
    return msgspec.structs.replace(config, federation=msgspec.structs.replace(config.federation, seed=seed))


def default_run_dir(config: RunConfig) -> Path:
    """``runs/<name>-<time>``."""
    return Path("runs") / f"{config.federation.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def check_new(run_dir: Path) -> None:
    """Check that a run can begin in ``run_dir``.

    Raises:
        ConfigError: a run is there already, or something that is no folder.
    """
    if holds_run(run_dir):
        raise parse_problem(
            "--run-dir", f"{run_dir} holds a run already; go on with it: apportion resume {run_dir}, or name another"
        )
    if run_dir.exists() and not run_dir.is_dir():
        raise parse_problem("--run-dir", f"{run_dir} is not a folder; name another")


@contextlib.contextmanager
def resumable(run_dir: Path) -> Iterator[None]:
    """Says how to go on when the run inside the context ends early."""
    how = f"apportion resume {run_dir}"
    try:
        yield
    except KeyboardInterrupt:
        if is_begun(run_dir):
            print(f"what was done so far is in {run_dir}; go on with: {how}", file=sys.stderr)
        raise
    except ApportionError as error:
        if is_begun(run_dir) and not error.hint:
            error.hint = (
                f"go on with: {how}" if error.code == "run-stopped" else f"once that is mended, go on with: {how}"
            )
        raise


def show(summary: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    """The table on stderr, unless that has JSON lines, and, without ``--json``, the result on stdout."""
    from coordinator.cli.device_view import print_devices
    from coordinator.rounds.metrics import described_score

    if not quiet and not _says_json(Path(summary["run_dir"])):
        print_devices(summary["device_table"])
    if not as_json:
        print(
            f"{described_score(summary)} after {summary['rounds']} rounds on {summary['devices']} devices "
            f"({summary['levels']} cuts) in {summary['wall_s']:.1f} s; everything is in {summary['run_dir']}"
        )


def _says_json(run_dir: Path) -> bool:
    """Whether what the run says on stderr is read by programs."""
    try:
        text = (run_dir / "config.toml").read_text(encoding="utf-8")
    except OSError:
        return False
    return bool(tomllib.loads(text).get("tracking", {}).get("logs") == "json")
