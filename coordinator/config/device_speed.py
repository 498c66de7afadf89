"""How fast simulated devices are, by name: multiply-accumulates and bytes per second."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceSpeed:
    """How fast a device is; the units are those of ``[simulation]``."""

    gmac_per_s: float
    link_mbit: float
    step_overhead_ms: float = 0.0
    latency_ms: float = 0.0

    def step_s(self, macs: int) -> float:
        """Seconds of one training step whose forward pass takes ``macs`` multiply-accumulates."""
        return self.step_overhead_ms / 1e3 + macs / (self.gmac_per_s * 1e9)

    def transfer_s(self, count: int) -> float:
        """Seconds to send or receive ``count`` bytes."""
        return count * 8 / (self.link_mbit * 1e6)

    def round_s(self, *, steps: int, step_macs: int, bytes_down: int, bytes_up: int) -> float:
        """Seconds from the order to the report."""
        return self.latency_ms / 1e3 + steps * self.step_s(step_macs) + self.transfer_s(bytes_down + bytes_up)


SPEEDS: dict[str, DeviceSpeed] = {
    # Source: PruneFL (Jiang et al.), measured on a Raspberry Pi 4 with PyTorch: a dense step of Conv-2 at batch 20
    # (344.2 million forward multiply-accumulates) takes 2.249 s, the link carries 1.44 MB/s.
    "raspberry-pi-4": DeviceSpeed(gmac_per_s=0.1531, link_mbit=11.5),
}
"""Devices by name."""
