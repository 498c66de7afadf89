"""The global model between rounds: a method's state as one blob, and as the file people take away.

A checkpoint holds the dense module's tensors under their own names and a method's further tensors under ``extra/``;
the round it belongs to is in the ledger. The final file holds the module's tensors alone: sorted names, no metadata.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator.submodels.values import State
from edge.contracts.errors import LedgerError
from edge.contracts.tensor_file import decode_tensors, encode_tensors
from edge.system.atomic_files import write_whole

_EXTRA = "extra/"


def encode_state(state: State) -> bytes:
    """Bytes of a checkpoint; equal states give equal bytes."""
    return encode_tensors({**state.tensors, **{_EXTRA + name: value for name, value in state.extra.items()}})


def decode_state(data: bytes, *, round_index: int) -> State:
    """The state of a checkpoint after ``round_index`` rounds; its arrays may be written to.

    Raises:
        ArtifactCorrupt: not a tensor file.
    """
    arrays = {name: np.array(value) for name, value in decode_tensors(data, where="checkpoint").items()}
    return State(
        tensors={name: value for name, value in arrays.items() if not name.startswith(_EXTRA)},
        extra={name[len(_EXTRA) :]: value for name, value in arrays.items() if name.startswith(_EXTRA)},
        round=round_index,
    )


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, whose folder is made; as :func:`edge.system.atomic_files.write_whole`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def write_final(state: State, path: Path) -> None:
    """Write the global model alone."""
    write_atomically(path, encode_tensors(state.tensors))


def read_final(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file that :func:`write_final` wrote, by name; read-only.

    Raises:
        LedgerError: it is not there; ArtifactCorrupt: it is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror}); the run may not have ended") from error
    return decode_tensors(data, where=str(path))
