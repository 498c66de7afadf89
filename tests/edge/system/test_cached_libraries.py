"""Libraries that an installer has just written: which kernels map them whole, and what is dropped from the cache."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from edge.system import cached_libraries
from edge.system.cached_libraries import maps_whole_folios, read_libraries_anew


@pytest.mark.parametrize(
    ("release", "maps"),
    [
        ("6.18.44-fc", True),
        ("6.18", True),
        ("7.0.0-rc1", True),
        ("6.12.25+rpt-rpi-v8", False),
        ("5.15.0", False),
        ("", False),
    ],
)
def test_kernels_that_map_whole_folios(release: str, *, maps: bool) -> None:
    assert maps_whole_folios(release) is maps


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package of a runtime's layout."""
    folder = tmp_path / "wheel_of_a_runtime"
    for name in ("capi/state.so", "capi/notes.txt", "far/too/deep/lib.so"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(100_000))
    (tmp_path / "wheel_of_a_runtime.libs").mkdir()
    (tmp_path / "wheel_of_a_runtime.libs" / "libneeded-1.so.5.0").write_bytes(bytes(100_000))
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="page advice is of Linux")
def test_libraries_of_a_package_are_dropped_on_such_a_kernel(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[tuple[str, int]] = []

    def advise(descriptor: int, _start: int, _length: int, advice: int) -> None:
        dropped.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, advice))

    monkeypatch.setattr(cached_libraries, "maps_whole_folios", lambda _: True)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    assert read_libraries_anew(package.name, "not_installed_here", "") == 2
    assert sorted(dropped) == [("libneeded-1.so.5.0", os.POSIX_FADV_DONTNEED), ("state.so", os.POSIX_FADV_DONTNEED)]
    assert package.name not in sys.modules, "finding its folder must not import it"


def test_nothing_is_dropped_on_other_kernels(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_libraries, "maps_whole_folios", lambda _: False)
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened a file"))
    assert read_libraries_anew(package.name) == 0
