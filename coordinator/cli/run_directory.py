"""A run's directory as other processes than its coordinator see it: its ledger, and whether somebody runs it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.cli.command import parse_problem
from edge.contracts.errors import LedgerError

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from coordinator.ledger.ledger import Ledger


def ledger_place(config: RunConfig, run_dir: Path) -> Path | str:
    """Where the run's ledger is: the address that ``[store]`` has, or a file in the run's directory."""
    return config.store.ledger or run_dir / "ledger.sqlite"


def is_begun(run_dir: Path) -> bool:
    """Whether the files of ``run_dir`` say that a run was begun there; asks no server."""
    return (run_dir / "ledger.sqlite").is_file() or _with_address(run_dir) is not None


def holds_run(run_dir: Path) -> bool:
    """Whether there is a ledger of the run in ``run_dir``.

    Raises:
        LedgerError: the server that it would be on does not answer, or the file is no ledger.
    """
    from coordinator.ledger.ledger import Ledger

    config = _with_address(run_dir)
    if config is None:
        return Ledger.exists(run_dir / "ledger.sqlite", federation="")
    return Ledger.exists(config.store.ledger, federation=config.federation.name)


def not_begun(run_dir: Path) -> RunConfig | None:
    """The configuration of a run whose process was killed before the ledger had a row: it can be begun, and nothing is
    lost. None where there is a run, or no configuration.

    Raises:
        LedgerError: as :func:`holds_run`.
    """
    from coordinator.run_file.loading import load_config

    written = run_dir / "config.toml"
    is_simulated = (run_dir / "simulation.json").exists()
    return load_config(written) if written.is_file() and not is_simulated and not holds_run(run_dir) else None


def _with_address(run_dir: Path) -> RunConfig | None:
    """The run's configuration when it names a server for the ledger."""
    from coordinator.run_file.loading import load_config

    written = run_dir / "config.toml"
    if (run_dir / "ledger.sqlite").is_file() or not written.is_file():
        return None
    config = load_config(written)
    return config if config.store.ledger else None


def ledger_of(run_dir: Path) -> Ledger:
    """The ledger of the run in ``run_dir``, which another process may be writing to.

    Raises:
        ConfigError: no run is there.
    """
    from coordinator.ledger.ledger import Ledger

    file = run_dir / "ledger.sqlite"
    if file.is_file():
        return Ledger.open(file)
    if (config := _with_address(run_dir)) is not None:
        return Ledger.open(config.store.ledger, federation=config.federation.name)
    raise parse_problem("RUN_DIR", f"{run_dir} holds no run (no ledger.sqlite in it); begin one with apportion run")


def is_live(run_dir: Path) -> bool:
    """Whether a coordinator holds the run directory."""
    try:
        with (run_dir / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return False
        raise LedgerError(f"{run_dir}/lock cannot be opened ({error.strerror}); see its rights") from error
    return False


def make_run_dir(run_dir: Path) -> None:
    """Make the directory, for its owner alone: models and updates are in it. One that is there stays as it is."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    run_dir.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def lock_run(run_dir: Path) -> Iterator[None]:
    """Holds the run directory for this process.

    Raises:
        LedgerError: another process holds it, or there is no such directory.
    """
    try:
        descriptor = os.open(run_dir / "lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise LedgerError(f"{run_dir}: cannot be opened ({error.strerror}); give the directory of a run") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = f"a paused one goes on with: apportion continue {run_dir}"
            raise LedgerError(f"{run_dir}: another coordinator runs here; wait for it or stop it", hint=hint) from error
        yield
    finally:
        os.close(descriptor)
