"""A disk that fails once, at the n-th write, sync or rename below a folder: for tests of what was on its way."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class FailingDisk:
    """Counts what is done to files below ``folder`` and fails at the ``at``-th, ``times`` times over.

    Attributes:
        done: what was counted, each ``write``, ``sync``, ``rename`` or ``open`` and the name of its file.
        failed: what was made to fail.
    """

    def __init__(
        self, folder: Path, at: int, number: int = errno.ENOSPC, *, times: int = 1, only: str = "", seen: str = ""
    ) -> None:
        self.folder, self.at, self.number, self.times, self.only = str(folder), at, number, times, only
        self.seen = seen
        self.done: list[str] = []
        self.failed: list[str] = []

    def passes(self, kind: str, path: object) -> None:
        """Count one, and fail if it is its turn.

        Raises:
            OSError: it is.
        """
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else str(path)
        if not str(name).startswith(self.folder) or (self.only and kind != self.only) or self.seen not in str(name):
            return
        what = f"{kind} {Path(str(name)).name}"
        self.done.append(what)
        if self.at <= len(self.done) and len(self.failed) < self.times:
            self.failed.append(what)
            raise OSError(self.number, os.strerror(self.number), str(name))


class _File(io.FileIO):
    disk: FailingDisk

    def write(self, data: Any, /) -> int:
        self.disk.passes("write", self.name)
        return super().write(data)


def _opened(disk: FailingDisk, real: Callable[..., Any]) -> Callable[..., Any]:
    def open_(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        is_counted = isinstance(file, str | os.PathLike) and str(file).startswith(disk.folder)
        if not is_counted or "b" not in mode or not set(mode) & set("wxa+"):
            if is_counted and set(mode) & set("wxa+"):
                disk.passes("write", file)
            return real(file, mode, buffering, *args, **kwargs)
        disk.passes("open", file)
        raw = type("Counted", (_File,), {"disk": disk})(file, mode.replace("b", ""))
        if buffering == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    return open_


@contextmanager
def failing(disk: FailingDisk) -> Iterator[FailingDisk]:
    """The disk in place of this machine's, while the context is open."""
    with pytest.MonkeyPatch.context() as patch:
        fsync, replace, rename = os.fsync, os.replace, os.rename

        def synced(descriptor: int) -> None:
            disk.passes("sync", os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        def moved(real: Callable[..., None]) -> Callable[..., None]:
            def move(source: Any, target: Any, **kwargs: Any) -> None:
                disk.passes("rename", target)
                real(source, target, **kwargs)

            return move

        opened = _opened(disk, io.open)
        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "replace", moved(replace))
        patch.setattr(os, "rename", moved(rename))
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        yield disk
