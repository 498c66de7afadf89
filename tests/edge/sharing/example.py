"""A board's profile and the rows of a climb, by hand."""

from __future__ import annotations

from typing import Any

from edge.measuring.results import LadderRow
from profiles.device import CoreGroup, DeviceProfile

AT = 1_764_000_000.0  # 2025-11-24


def profile(**others: Any) -> DeviceProfile:
    given: dict[str, Any] = {
        "device": "kitchen-pi",
        "board": "Raspberry Pi 4 Model B Rev 1.5",
        "cpu_model": "Cortex-A72",
        "cores": (CoreGroup(name="Cortex-A72", count=4, max_mhz=1800.0),),
        "machine": "aarch64",
        "ram_bytes": 3_971_000_000,
        "system": "Linux 6.6.31+rpt-rpi-v8",
        "os_name": "Debian GNU/Linux 12 (bookworm)",
        "python": "3.11.2",
        "probed_at": AT,
    }
    return DeviceProfile(**given | others)


def row(**others: Any) -> LadderRow:
    given: dict[str, Any] = {
        "shape": "resnet20",
        "digest": "a" * 64,
        "runtime": "onnxruntime",
        "runtime_version": "1.23.0",
        "batch": 8,
        "threads": 1,
        "parameters": 270_000,
        "macs": 40_000_000,
        "live_bytes": 9_000_000,
        "predicted_bytes": 20 << 20,
        "outcome": "measured",
        "reason": "",
        "steps": 20,
        "step_ms_p50": 210.1234,
        "step_ms_p95": 230.5678,
        "idle_bytes": 50 << 20,
        "peak_bytes": 72 << 20,
        "cpu_share": 0.99,
        "heat_c": (51.0, 62.54),
        "measured_at": AT,
    }
    return LadderRow(**given | others)
