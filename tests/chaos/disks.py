"""Small disks that can be filled: tmpfs mounts in a mount namespace of the seed's own, gone with its processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18

_FILLER = "filler"
_CHUNK = b"\0" * 65_536


class NoDisks(OSError):
    """This system lets us mount nothing; the message says why."""


def own_mounts() -> None:
    """Give this process and its future children a view of mounts of their own.

    Raises:
        NoDisks: not root, and no user namespaces.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNS if uid == 0 else _CLONE_NEWNS | _CLONE_NEWUSER):
        raise NoDisks(f"no mount namespace here ({os.strerror(ctypes.get_errno())})")
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        raise NoDisks(f"mounts cannot be made private ({os.strerror(ctypes.get_errno())})")


def why_no_disks() -> str:
    """Why there can be no small disks here, tried in a process that ends at once; empty when there can."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            own_mounts()
            Disk(Path("/tmp"), 1 << 20).mount()
        except BaseException as error:
            os.write(writing, (str(error) or type(error).__name__).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading, encoding="utf-8") as told:
        return told.read()


class Disk:
    """A disk of ``size`` bytes at ``folder``; a plain folder until :meth:`mount`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self._size = folder, size
        self.is_mounted = False

    def mount(self) -> None:
        """Mount it; whatever lay there before is hidden.

        Raises:
            NoDisks: refused.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"size={self._size},mode=700".encode()
        if libc.mount(b"tmpfs", os.fsencode(self.folder), b"tmpfs", 0, options):
            raise NoDisks(f"no tmpfs at {self.folder} ({os.strerror(ctypes.get_errno())})")
        self.is_mounted = True

    def fill(self, left: int) -> None:
        """Use up all but ``left`` bytes."""
        with (self.folder / _FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(_CHUNK)
        with (self.folder / _FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(_CHUNK[:4096])
        if left:
            size = (self.folder / _FILLER).stat().st_size
            os.truncate(self.folder / _FILLER, max(0, size - left))

    def free(self) -> bool:
        """Give the space back; whether it was filled."""
        try:
            (self.folder / _FILLER).unlink()
        except FileNotFoundError:
            return False
        return True
