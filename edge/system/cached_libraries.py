"""Shared libraries that are read from their files anew, in small pieces, before they are mapped.

Since Linux 6.18 a page fault in a file maps the whole folio that caches it. What an installer has just written is
cached in folios of up to megabytes, so a process that imports it then has most of its libraries resident: an idle
trainer on ONNX Runtime 65.7 MB, not 51.8 (measured, x86-64, Linux 6.18, after a fresh install). Page faults read small
pieces, so it is enough to drop what is cached. ``python -m edge.system.cached_libraries PACKAGE ...`` does it after an
install; a trainer does it as it starts, for libraries that nobody else has mapped.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

WHOLE_FOLIOS = (6, 18)
"""The kernel that maps whole folios first."""

_DEPTHS = ("*.so*", "*/*.so*", "*/*/*.so*")  # where wheels of runtimes keep libraries; their other folders are large


def read_libraries_anew(*packages: str) -> int:
    """Drop cached pages of the libraries of ``packages``, before they are imported.

    Pages that other processes have mapped stay, as does everything on kernels before :data:`WHOLE_FOLIOS`.

    Returns:
        The number of files dropped.
    """
    if not maps_whole_folios(os.uname().release if sys.platform == "linux" else ""):
        return 0
    return sum(_drop(path) for package in packages for path in _libraries_of(package))


def maps_whole_folios(release: str) -> bool:
    """Whether the kernel of this release, as ``uname -r`` says it, does."""
    version = re.match(r"(\d+)\.(\d+)", release)
    return version is not None and (int(version[1]), int(version[2])) >= WHOLE_FOLIOS


def _libraries_of(package: str) -> Iterator[Path]:
    spec = find_spec(package) if package else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in _DEPTHS:
            yield from Path(folder).glob(pattern)
        yield from Path(f"{folder}.libs").glob("*.so*")  # what the wheel's libraries need


def _drop(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        with contextlib.suppress(OSError):  # a file system that cannot be written to has nothing to write
            os.fdatasync(descriptor)  # a page that is not written yet is not dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


if __name__ == "__main__":
    # A module that is one file, named so, has no libraries.
    read_libraries_anew(*(name for name in sys.argv[1:] if name.isidentifier()))
