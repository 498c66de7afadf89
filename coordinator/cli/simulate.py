"""``apportion simulate CONFIG``: the run of a run file with devices that torch stands in for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.run import check_new, default_run_dir, with_seed
from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import TORCH, RunConfig
from edge.contracts.errors import ApportionError, ConfigError
from edge.runtimes import RUNTIMES

if TYPE_CHECKING:
    from coordinator.simulation.assembly import Engine, SimulationOptions
    from coordinator.simulation.record import Record

ENGINES = ("processes", "ray")
EXAMPLE = "Example: apportion simulate examples/digits.toml --rounds 2 --run-dir runs/simulated --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("simulate", epilog=EXAMPLE)(simulate)


@verb("simulate")
def simulate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the run file (TOML)")],
    run_dir: Annotated[
        Path | None,
        typer.Option(help="where everything is left; goes on with an unfinished one; runs/<name>-<time> if unset"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="instead of federation.seed")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="instead of federation.rounds")] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="processes that train; results do not depend on it")] = 1,
    device: Annotated[str, typer.Option(help="where torch computes: cpu or cuda")] = "cpu",
    runtime: Annotated[
        str, typer.Option(help="what computes the steps, instead of simulation.runtime: torch, or a device's runtime")
    ] = "",
    engine: Annotated[str, typer.Option(help="whose processes train: processes of this machine, or ray")] = "processes",
    address: Annotated[str, typer.Option(help="of a Ray cluster; unset: one is started here")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Run a federation with simulated devices: same cuts, batches and aggregation; no broker, no agents."""
    from coordinator.run_file.loading import load_config
    from coordinator.simulation.assembly import SimulationOptions

    settings = with_runtime(with_rounds(with_seed(load_config(config), seed), rounds), runtime)
    if engine not in ENGINES:
        raise parse_problem("--engine", f"'{engine}' is not known; use {' or '.join(ENGINES)}")
    if address and engine != "ray":
        raise parse_problem("--address", f"'{address}' is of a Ray cluster; add --engine ray")
    options = SimulationOptions(
        workers=workers, device=device, quiet=quiet, engine=cast("Engine", engine), address=address
    )
    summary = simulate_in(settings, run_dir or default_run_dir(settings), options)
    if not as_json:
        print(describe(summary))
    return summary


def simulate_in(config: RunConfig, run_dir: Path, options: SimulationOptions) -> dict[str, Any]:
    """Simulate ``config`` in ``run_dir``, from where an unfinished one there ended; the values of ``summary.json``.

    Raises:
        ConfigError: the folder is another run's, or torch cannot compute on the options' device; LedgerError: another
            process simulates there.
    """
    from coordinator.cli.run_directory import lock_run
    from coordinator.simulation.assembly import simulate as run_simulation
    from coordinator.simulation.local_training import checked_device
    from coordinator.simulation.results import finished_summary

    checked_device(options.device)
    check_new(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    with lock_run(run_dir):
        record = begin(config, run_dir)
        summary = finished_summary(run_dir) if record.finished else None
        try:
            return summary or run_simulation(config, run_dir, record, options)
        except (KeyboardInterrupt, ApportionError):
            if record.done:
                print(f"{record.done} rounds are in {run_dir}; the same command goes on from there", file=sys.stderr)
            raise


def with_rounds(config: RunConfig, rounds: int | None) -> RunConfig:
    """``config`` with another number of rounds, or itself."""
    if rounds is None:
        return config
    return msgspec.structs.replace(config, federation=msgspec.structs.replace(config.federation, rounds=rounds))


def with_runtime(config: RunConfig, name: str) -> RunConfig:
    """``config`` with steps by another runtime, or itself.

    Raises:
        ConfigError: it is not known.
    """
    if not name:
        return config
    known = (TORCH, *RUNTIMES)
    if name not in known:
        raise parse_problem("--runtime", f"'{name}' is not known; use {', '.join(known)}")
    return msgspec.structs.replace(config, simulation=msgspec.structs.replace(config.simulation, runtime=name))


def begin(config: RunConfig, run_dir: Path) -> Record:
    """The record of the simulation in ``run_dir``, a new one where there is none.

    Raises:
        ConfigError: another configuration is simulated there.
    """
    from coordinator.rounds.global_model import write_atomically
    from coordinator.simulation.record import Record, read_record, write_record

    text, path = canonical_toml(config), run_dir / "config.toml"
    record = read_record(run_dir)
    if record is None or not record.done:
        write_atomically(path, text.encode())
        record = Record()
        write_record(run_dir, record)
    elif not _holds(path, text):
        raise parse_problem("--run-dir", f"{run_dir} holds a simulation of another configuration; name another")
    return record


def _holds(path: Path, text: str) -> bool:
    """Whether a run's file says what ``text`` says; keys that an earlier release did not know have their defaults."""
    from coordinator.run_file.loading import load_config

    try:
        return path.read_text(encoding="utf-8") == text or canonical_toml(load_config(path)) == text
    except (OSError, ConfigError):
        return False


def describe(summary: dict[str, Any]) -> str:
    """The result for people."""
    from coordinator.rounds.metrics import described_score

    models = summary["evaluation"]["models"]
    scores = "\n".join(
        f"  {label:<16} " + "  ".join(f"{name} {value:.4f}" for name, value in m.items() if name != "examples")
        for label, m in models.items()
    )
    return (
        f"{described_score(summary)} after {summary['rounds']} rounds on {summary['devices']} simulated "
        f"devices ({summary['levels']} cuts) in {summary['wall_s']:.1f} s; "
        f"simulated time {summary['simulated_s']:.0f} s, down {summary['bytes_down'] / 1e6:.1f} MB, "
        f"up {summary['bytes_up'] / 1e6:.1f} MB; everything is in {summary['run_dir']}\n{scores}"
    )
