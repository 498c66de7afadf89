"""Begins, resumes and joins runs: leads their rounds in a run directory and writes what they leave.

Used by ``run``, ``resume``, ``join`` and ``demo``. Nothing here decides anything about rounds, devices or messages.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from coordinator.cli.open_run import RunOptions, federation_id, opened_run
from coordinator.cli.own_code import needs_record
from coordinator.cli.own_runs import remember
from coordinator.cli.preparation import Prepared, prepare
from coordinator.cli.results import finish_run, finished_summary
from coordinator.cli.run_directory import holds_run, ledger_of, ledger_place, lock_run, make_run_dir
from coordinator.cli.sharded_run import run_shards
from coordinator.cli.taking_turns import check_shareable, take_turns
from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import RunConfig
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Federation as Begun
from coordinator.reporting.progress import Progress
from coordinator.rounds.control import CONTROL
from coordinator.rounds.global_model import write_atomically
from coordinator.rounds.run import run_rounds
from coordinator.rounds.tracked_rounds import TrackedRounds
from coordinator.run_file.loading import load_config_text
from coordinator.shards.leadership import Leadership
from coordinator.tracking.tracked_run import TrackedRun, check_trackers, tracked_run
from edge.contracts.errors import ConfigError, LedgerError


def start_run(config: RunConfig, run_dir: Path, options: RunOptions) -> dict[str, Any]:
    """A new run in ``run_dir``; the values of its ``summary.json``.

    Raises:
        LedgerError: there is a run in that directory already.
    """
    check_trackers(config)
    make_run_dir(run_dir)
    text = canonical_toml(config)
    with lock_run(run_dir):  # before anything is looked at or written: two processes may begin in one folder
        if holds_run(run_dir):
            raise LedgerError(
                f"{run_dir} holds a run already; resume it with `apportion resume {run_dir}` or choose another"
            )
        write_atomically(run_dir / "config.toml", text.encode())
        with Ledger.create(
            ledger_place(config, run_dir),
            federation=federation_id(config, run_dir),
            config=text,
            seed=config.federation.seed,
        ) as ledger:
            _remember(config, ledger.federation(), quiet=options.quiet)
        return _run(config, run_dir, options)


def _remember(config: RunConfig, run: Begun, *, quiet: bool) -> None:
    """Write down that this account began ``run``, where its resumption would ask for more otherwise."""
    if not needs_record(config):
        return
    try:
        remember(run)
    except (OSError, RuntimeError) as error:  # RuntimeError: an account without a home
        if not quiet:
            print(f"not written down as begun here ({error}): resume will ask for --allow-*", file=sys.stderr)


def resume_run(run_dir: Path, options: RunOptions) -> dict[str, Any]:
    """Go on with the run in ``run_dir`` from the last thing on disk; a finished run gives its summary again."""
    with lock_run(run_dir), ledger_of(run_dir) as ledger:
        text, state = ledger.federation().config, ledger.federation().state
    if state == "finished" and (summary := finished_summary(run_dir)) is not None:
        return summary
    config = load_config_text(text, folder=run_dir)
    if not (run_dir / "config.toml").is_file():
        write_atomically(run_dir / "config.toml", text.encode())
    if options.max_epsilon is not None:
        config = msgspec.structs.replace(
            config, privacy=msgspec.structs.replace(config.privacy, max_epsilon=options.max_epsilon)
        )
    with lock_run(run_dir):
        with ledger_of(run_dir) as ledger:
            if options.max_epsilon is not None:
                ledger.audit_log.add("config-changed", details={"privacy.max-epsilon": options.max_epsilon})
            ledger.requests.put(CONTROL, "")  # whoever resumes a run wants it to go on
        return _run(config, run_dir, options)


def join_run(text: str, place: str, run_dir: Path, options: RunOptions) -> dict[str, Any]:
    """Wait in ``run_dir`` for the turn to lead a run that another process began; its summary if it ended here, else
    nothing.

    Args:
        text: the run's configuration, as its ledger has it.
        place: the ledger's address, as this machine reaches it.

    Raises:
        ConfigError: the run keeps something on the machine that began it; LedgerError: there is no such run.
    """
    make_run_dir(run_dir)
    config = load_config_text(text, folder=run_dir)
    check_shareable(config)
    config = msgspec.structs.replace(config, store=msgspec.structs.replace(config.store, ledger=place))
    with lock_run(run_dir):
        write_atomically(run_dir / "config.toml", canonical_toml(config).encode())
        return _run(config, run_dir, options, is_joined=True)


def _run(config: RunConfig, run_dir: Path, options: RunOptions, *, is_joined: bool = False) -> dict[str, Any]:
    if options.dashboard_port is not None:
        from coordinator.cli.dashboard_process import dashboard_process

        with dashboard_process(run_dir, options.dashboard_port):
            return _run(config, run_dir, replace(options, dashboard_port=None), is_joined=is_joined)
    progress = Progress(
        stream=None if options.quiet else sys.stderr, metrics=run_dir / "metrics.jsonl", form=config.tracking.logs
    )
    if not config.store.ledger:
        return _lead(config, run_dir, options, prepare(config), progress)
    if config.store.shards > 1:
        if options.watchers:
            why = "rounds of a run in shards are led by several processes, and a callback belongs to one"
            raise ConfigError([f"$.store.shards: {config.store.shards} with a callback; {why}; leave one of them out"])
        return run_shards(config, run_dir, options.local_devices, options.on_point, progress, is_joined=is_joined)
    return take_turns(
        config,
        run_dir,
        prepare=lambda: prepare(config),
        lead=lambda prepared, lead: _lead(config, run_dir, options, prepared, progress, lead),
        say=progress.say,
        until_finished=is_joined,
    )


def _lead(
    config: RunConfig,
    run_dir: Path,
    options: RunOptions,
    prepared: Prepared,
    progress: Progress,
    leadership: Leadership | None = None,
) -> dict[str, Any]:
    """Run every round that is left; ``leadership`` where several coordinators share the ledger."""
    with tracked_run(config, run_dir, progress.say) as tracked:
        options = watched(options, tracked)
        with opened_run(config, run_dir, options, prepared, progress, leadership) as run:
            with progress.watching(run.status.line):
                state = run_rounds(run.federation)
            wall_s, ceilings = time.monotonic() - prepared.started, run.local.ceilings()
            tracked.summary = finish_run(
                run.federation, prepared.evaluator, state, run_dir, wall_s=wall_s, ceilings=ceilings
            )
        return dict(tracked.summary)


def watched(options: RunOptions, tracked: TrackedRun) -> RunOptions:
    """``options`` with the stage that tells the run's trackers, if any; first: callbacks may raise."""
    if not tracked.is_listening:
        return options
    return replace(options, watchers=(TrackedRounds(tracked), *options.watchers))
