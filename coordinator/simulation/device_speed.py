"""Seconds a simulated device takes for a round: its steps by their multiply-accumulates, its transfers by their bytes.

A round lasts as long as its slowest device. Nothing else follows from the seconds: simulated devices miss no deadline.
"""

from __future__ import annotations

from coordinator.config.device_speed import SPEEDS, DeviceSpeed
from coordinator.config.run_config import SimulationConfig


def device_speed(config: SimulationConfig) -> DeviceSpeed:
    """The profile that ``[simulation]`` names, with the values it gives instead."""
    named = SPEEDS[config.profile]
    return DeviceSpeed(
        gmac_per_s=config.gmac_per_s or named.gmac_per_s,
        link_mbit=config.link_mbit or named.link_mbit,
        step_overhead_ms=config.step_overhead_ms or named.step_overhead_ms,
        latency_ms=config.latency_ms or named.latency_ms,
    )
