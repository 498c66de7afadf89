"""Arrays kept on disk between processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.data.kept_arrays import cache_folder, kept_array


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def made(calls: list[int]) -> np.ndarray:
    calls.append(1)
    return np.arange(6, dtype=np.uint8).reshape(2, 3)


def test_array_is_made_once(tmp_path: Path) -> None:
    calls: list[int] = []
    first, second = (kept_array("a", lambda: made(calls)) for _ in range(2))
    assert len(calls) == 1
    assert np.array_equal(first, second)
    assert second.dtype == np.uint8
    assert [path.name for path in (tmp_path / "apportion").iterdir()] == ["a.npy"]
    kept_array("b", lambda: made(calls))
    assert len(calls) == 2


def test_file_that_was_cut_off_is_made_anew() -> None:
    calls: list[int] = []
    kept_array("a", lambda: made(calls))
    path = cache_folder() / "a.npy"
    path.write_bytes(path.read_bytes()[:40])
    assert kept_array("a", lambda: made(calls)).sum() == 15
    assert kept_array("a", lambda: made(calls)).sum() == 15
    assert len(calls) == 2


def test_where_nothing_can_be_written_it_is_made_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    calls: list[int] = []
    assert kept_array("a", lambda: made(calls)).shape == (2, 3)
    assert kept_array("a", lambda: made(calls)).shape == (2, 3)
    assert len(calls) == 2
