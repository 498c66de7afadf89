"""Simulated seconds and bytes, by hand."""

from __future__ import annotations

import pytest

from coordinator.config.device_speed import DeviceSpeed
from coordinator.config.run_config import SimulationConfig
from coordinator.simulation.device_speed import device_speed


def test_round_is_latency_steps_and_both_transfers() -> None:
    speed = DeviceSpeed(gmac_per_s=2.0, link_mbit=8.0, step_overhead_ms=100.0, latency_ms=500.0)
    # 0.5 s + 3 steps of (0.1 s + 4 GMAC / 2 per s) + 3 MB at 1 MB/s.
    seconds = speed.round_s(steps=3, step_macs=4_000_000_000, bytes_down=2_000_000, bytes_up=1_000_000)
    assert seconds == pytest.approx(0.5 + 3 * 2.1 + 3.0)


def test_pi_takes_what_prunefl_measured_for_a_dense_round_of_conv2() -> None:
    # Source: PruneFL: five iterations of batch 20 take 5 * 2.24864 s, both transfers of 6,603,710 values 35.88 s.
    seconds = device_speed(SimulationConfig()).round_s(
        steps=5, step_macs=20 * 17_211_904, bytes_down=4 * 6_603_710, bytes_up=4 * 6_603_710
    )
    assert seconds == pytest.approx(5 * 2.24864 + 35.88, rel=0.03)


def test_values_of_the_file_replace_the_profiles() -> None:
    own = device_speed(SimulationConfig(link_mbit=100.0, latency_ms=20.0))
    named = device_speed(SimulationConfig())
    assert (own.link_mbit, own.latency_ms, own.gmac_per_s) == (100.0, 20.0, named.gmac_per_s)
