"""The final model of a run's or a simulation's directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.cli.command import parse_problem
from coordinator.cli.own_code import check_code, named_by
from coordinator.cli.own_runs import is_own
from coordinator.cli.run_directory import is_begun, ledger_of
from coordinator.config.run_config import RunConfig
from coordinator.submodels.values import State
from edge.contracts.errors import LedgerError

if TYPE_CHECKING:
    import numpy as np


def final_model(run_dir: Path, *, allow_code: bool) -> tuple[RunConfig, State]:
    """The configuration and the last state of the run or simulation in ``run_dir``, which has ended.

    Raises:
        ConfigError: there is none, or it names code of its author's and was not begun here.
        LedgerError: it has not ended; ArtifactCorrupt: its last checkpoint is damaged.
    """
    if (run_dir / "simulation.json").is_file():
        return _of_simulation(run_dir, allow_code=allow_code)
    if not is_begun(run_dir):
        raise parse_problem("RUN_DIR", f"{run_dir} holds no run and no simulation; give the directory of one")
    return _of_run(run_dir, allow_code=allow_code)


def final_base(run_dir: Path, config: RunConfig) -> dict[str, np.ndarray] | None:
    """The base file that the devices of a language model's run had; None of a simulation, which has none.

    Raises:
        ConfigError: the store has lost it, and the model's files are no longer those that it was made of.
        ArtifactCorrupt: it is damaged.
    """
    if not is_begun(run_dir):
        return None
    from coordinator.blobs.opening import open_blobs
    from coordinator.exporting.base_file import stored_base
    from edge.contracts.tensor_file import decode_tensors, read_tensor_file

    with ledger_of(run_dir) as ledger:
        blobs = open_blobs(config, run_dir, ledger.federation(), tidy=False)
        digest = stored_base(config, ledger, blobs).digest
    blobs.verify(digest)
    where, path = f"base {digest[:12]}", blobs.path(digest)
    return read_tensor_file(path, where=where) if path.is_file() else decode_tensors(blobs.read(digest), where=where)


def _of_simulation(run_dir: Path, *, allow_code: bool) -> tuple[RunConfig, State]:
    from coordinator.exporting.task_metric import is_lower_better
    from coordinator.rounds.best_round import rounds_until_stop
    from coordinator.run_file.loading import load_config
    from coordinator.simulation.record import read_record, restored_state

    config, record = load_config(run_dir / "config.toml"), read_record(run_dir)
    check_code(named_by(config), f"{run_dir} is a simulation's and", is_allowed=allow_code)
    state = None
    if record is not None and record.finished:
        state = restored_state(
            run_dir,
            record,
            rounds=rounds_until_stop(record.rounds, config.federation, is_lower=is_lower_better(config)),
        )
    if state is None:
        raise LedgerError(f"{run_dir}: the simulation has not ended; the command that began it goes on from there")
    return config, state


def _of_run(run_dir: Path, *, allow_code: bool) -> tuple[RunConfig, State]:
    from coordinator.blobs.opening import open_blobs
    from coordinator.exporting.task_metric import is_lower_better
    from coordinator.rounds.best_round import rounds_until_stop
    from coordinator.rounds.global_model import decode_state
    from coordinator.run_file.loading import load_config_text

    with ledger_of(run_dir) as ledger:
        run, rounds = ledger.federation(), [r for r in ledger.rounds.all() if r.state == "committed"]
    config = load_config_text(run.config, folder=run_dir)
    check_code(named_by(config), f"{run_dir} was not begun here and", is_allowed=allow_code or is_own(run))
    if run.state != "finished" or not rounds:
        raise LedgerError(f"{run_dir}: the run has not ended; go on with: apportion resume {run_dir}")
    trained = rounds_until_stop(
        [{**entry.metrics, "round": entry.round} for entry in rounds],
        config.federation,
        is_lower=is_lower_better(config),
    )
    blobs, digest = open_blobs(config, run_dir, run, tidy=False), rounds[-1].model_digest
    blobs.verify(digest)
    return config, decode_state(blobs.read(digest), round_index=trained)
