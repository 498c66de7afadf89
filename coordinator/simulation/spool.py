"""Updates between training and their sum: in memory, and in a file each where they are too many for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coordinator.submodels.values import Update
from edge.contracts.tensor_file import encode_tensors, read_tensor_file

IN_MEMORY_BYTES = 2 << 30
"""What updates may take in memory; memory does not grow with the cohort beyond it."""


class Spool:
    """Updates by assignment, each put once, and there until it is taken or all are dropped.

    Args:
        folder: for those that memory has no room for.
    """

    def __init__(self, folder: Path, *, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._folder = folder
        self._left = in_memory_bytes
        self._updates: dict[str, Update] = {}

    def put(self, key: str, update: Update) -> None:
        """Keep ``update``."""
        size = _bytes_of(update)
        if size <= self._left:
            self._left -= size
        else:
            self._path(key).write_bytes(encode_tensors(update.tensors))
            update = replace(update, tensors={})
        self._updates[key] = update

    def take(self, key: str) -> Update:
        """The update, whole; it is no longer kept."""
        update = self._updates.pop(key)
        path = self._path(key)
        if path.exists():
            update = replace(update, tensors=read_tensor_file(path, where=f"update of {update.device}"))
            path.unlink()  # what is mapped stays readable
        else:
            self._left += _bytes_of(update)
        return update

    def look(self, key: str) -> Update:
        """The update, whole; it is kept."""
        update, path = self._updates[key], self._path(key)
        if path.exists():
            return replace(update, tensors=read_tensor_file(path, where=f"update of {update.device}"))
        return update

    def drop(self) -> None:
        """Take all that is left."""
        for key in list(self._updates):
            self.take(key)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"


def _bytes_of(update: Update) -> int:
    return sum(value.nbytes for value in update.tensors.values())
