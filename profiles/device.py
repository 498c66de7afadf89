"""What a device is and can afford, as it reports itself; frozen and versioned by the envelope that carries it.

Probing fills it (:mod:`profiles.probe`); budgets are set by the owner, never guessed from free memory.
"""

from __future__ import annotations

import msgspec


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A device at one moment.

    Attributes:
        budget_bytes: what supervisor and trainer together may reach, peak RSS; 0 when the owner set none.
        ram_bytes, free_ram_bytes: physical memory and what the system calls available.
        cpu_count: logical processors the agent may use.
        machine: architecture (``aarch64``, ``x86_64``).
        supervisor_idle_bytes: RSS of the supervisor when idle.
        trainer_idle_bytes: runtime name -> RSS of a trainer with that runtime loaded, before any artifact.
        max_threads: runtime name -> most threads a step of it uses here; absent: as many as ordered.
        probed_at: seconds since 1970.
        sparse_below: runtime name -> kind of layer (``linear``, ``convolution``) -> density below which a layer's step
            is faster with its kept weights alone, measured when the trainer started; absent: there are no such kernels.
    """

    device: str
    budget_bytes: int = 0
    ram_bytes: int = 0
    free_ram_bytes: int = 0
    cpu_count: int = 1
    cpu_model: str = ""
    machine: str = ""
    system: str = ""
    storage_free_bytes: int = 0
    temperature_c: float | None = None
    battery_percent: float | None = None
    charging: bool | None = None
    supervisor_idle_bytes: int = 0
    trainer_idle_bytes: dict[str, int] = {}
    probed_at: float = 0.0
    max_threads: dict[str, int] = {}
    sparse_below: dict[str, dict[str, float]] = {}
