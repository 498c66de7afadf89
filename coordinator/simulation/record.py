"""What a simulation has on disk between rounds: the state, and what the rounds so far came to.

The checkpoint of a round is written first, then ``simulation.json`` that names it, then the one before is removed: a
simulation that is killed anywhere goes on from a whole round and ends with the same bits.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from coordinator.rounds.global_model import decode_state, encode_state, write_atomically
from coordinator.submodels.values import State
from edge.contracts.codec import encode_json
from edge.contracts.errors import LedgerError

FILE = "simulation.json"


class Record(msgspec.Struct, kw_only=True):
    """Everything but the tensors.

    Attributes:
        done: rounds committed, the statistics round included.
        checkpoint: name of the file with the state after them, empty before the first.
        rounds: metrics of each, as in ``metrics.jsonl``.
        devices: device -> its totals, as in the device table.
        wall_s: spent so far.
        finished: whether nothing is left to do.
    """

    done: int = 0
    checkpoint: str = ""
    rounds: list[dict[str, Any]] = []
    devices: dict[str, dict[str, Any]] = {}
    wall_s: float = 0.0
    finished: bool = False


def read_record(run_dir: Path) -> Record | None:
    """What is there; None where no simulation was begun.

    Raises:
        LedgerError: the file cannot be read.
    """
    path = run_dir / FILE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError) as error:
        raise LedgerError(f"{path}: cannot be read ({error}); simulate into another --run-dir") from error


def write_record(run_dir: Path, record: Record) -> None:
    """Write ``simulation.json``."""
    write_atomically(run_dir / FILE, encode_json(record))


class Commits:
    """Puts states on disk while the next round goes on, one after the other; a context manager that ends with the last.

    Args:
        record: of the same rounds; it is written as it was at each commit.
    """

    def __init__(self, run_dir: Path, record: Record) -> None:
        self._run_dir, self._record = run_dir, record
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._last: Future[None] | None = None

    def __enter__(self) -> Commits:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        if self._last is not None:
            self._last.result()

    def put(self, state: State) -> None:
        """Put ``state`` on disk as what follows the ``done`` rounds of the record.

        Raises:
            OSError: the state before it could not be written.
        """
        if self._last is not None:
            self._last.result()
        record = self._record
        before, record.checkpoint = record.checkpoint, f"after-{record.done:05d}.safetensors"
        self._last = self._thread.submit(_commit, self._run_dir, encode_json(record), record.checkpoint, before, state)


def _commit(run_dir: Path, record: bytes, name: str, before: str, state: State) -> None:
    write_atomically(run_dir / "checkpoints" / name, encode_state(state))
    write_atomically(run_dir / FILE, record)
    if before and before != name:
        (run_dir / "checkpoints" / before).unlink(missing_ok=True)


def restored_state(run_dir: Path, record: Record, *, rounds: int) -> State | None:
    """The state after the last committed round; None before the first.

    Raises:
        LedgerError: the checkpoint is gone.
    """
    if not record.checkpoint:
        return None
    path = run_dir / "checkpoints" / record.checkpoint
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error}); simulate into another --run-dir") from error
    return decode_state(data, round_index=min(record.done, rounds))
