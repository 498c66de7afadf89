"""A core's peak: measured above what a plain loop does, and refused by name where there is no compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edge.contracts.errors import DeviceRefused
from edge.measuring.fma_peak import FmaPeak


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the loop with; install it")
def test_peak_is_the_highest_rate_measured(tmp_path: Path) -> None:
    peak = FmaPeak(tmp_path)
    first = peak.measure(times=2)
    # Any core with vectors of four floats does more than one multiply-add a cycle at half a gigahertz.
    assert first > 5e8
    assert peak.measure(times=1) >= first == pytest.approx(peak.macs_per_s, rel=0.9)


def test_peak_without_a_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceRefused, match="no-such-compiler"):
        FmaPeak(tmp_path)
