"""What a device is and can afford, as it reports itself; frozen and versioned by the envelope that carries it.

Probing fills it (:mod:`profiles.probe`), or a datasheet (:mod:`profiles.known_devices`); ``sources`` says which figure
came from where. Budgets are set by the owner, never guessed from free memory.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from profiles.bounds import (
    MOST_PROCESSORS,
    AFew,
    Amount,
    Coefficient,
    Count,
    Degrees,
    Name,
    Processors,
    SignedSize,
    Size,
    Text,
)
from profiles.step_work import StepWork


class CoreGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Processors of one kind.

    Attributes:
        name: ``Cortex-A76``; empty where the processor does not say.
        max_mhz: what they may be clocked at, None where the system does not say.
    """

    name: Name
    count: Processors
    max_mhz: Amount | None = None


class MemoryLine(msgspec.Struct, frozen=True):
    """Measured growth = max(floor, scale x predicted growth + offset), growth being a trainer's peak above idle.

    Attributes:
        missing_bytes: the most that a measured peak was above that.
        points: settings it was fitted on.
        measured_at: seconds since 1970.
        floor_bytes: what loading an artifact takes, more than the steps of small ones, where its graph's size is not
            known; ``floor_base_bytes + floor_graph_scale x graph bytes`` where it is.
    """

    scale: Coefficient
    offset_bytes: SignedSize
    missing_bytes: Size = 0
    points: Count = 0
    measured_at: Amount = 0.0
    floor_bytes: Size = 0
    floor_base_bytes: Size = 0
    floor_graph_scale: Coefficient = 0.0

    def growth_bytes(self, predicted_bytes: int, graph_bytes: int = 0) -> int:
        """The growth to expect where a manifest says so, the graph's size 0 if not known; never negative."""
        by_graph = graph_bytes and self.floor_graph_scale
        floor = self.floor_base_bytes + round(self.floor_graph_scale * graph_bytes) if by_graph else self.floor_bytes
        return max(0, floor, round(self.scale * predicted_bytes + self.offset_bytes))


PARAMETER_LIVE_BYTES = 36
"""What a trained parameter has of a step's live bytes: value, slot and next of both, gradient and what passes by. Only
what is live beyond that, activations, takes time by its bytes. Source: measured, x86-64, ONNX Runtime, 15 shapes."""


class StepLine(msgspec.Struct, frozen=True):
    """The time of a training step by its work, with one number of threads.

    step_ms = graph kB x graph_kilobyte + work + activation MB x megabyte + parameters / 10^6 x megaparameter, kB and MB
    of 10^3 and 10^6 bytes, activations being the live bytes beyond those of the parameters. Work is convolution,
    padded and matrix multiply-accumulates of the step (:class:`profiles.step_work.StepWork`) / 10^9, each x its
    coefficient, where both line and artifact have them; else batch x macs of a forward pass / 10^9 x gigamac.

    Attributes:
        constant_ms: in place of the graph's part where its size is not known, or was not fitted.
        median_error: of the points it was fitted on, relative to each.
        points: settings it was fitted on.
        measured_at: seconds since 1970.
    """

    threads: Annotated[int, msgspec.Meta(ge=1, le=MOST_PROCESSORS)]
    constant_ms: Coefficient
    gigamac_ms: Coefficient
    megabyte_ms: Coefficient
    median_error: Coefficient = 0.0
    points: Count = 0
    measured_at: Amount = 0.0
    graph_kilobyte_ms: Coefficient = 0.0
    megaparameter_ms: Coefficient = 0.0
    convolution_gigamac_ms: Coefficient = 0.0
    padded_gigamac_ms: Coefficient = 0.0
    matrix_gigamac_ms: Coefficient = 0.0

    def work_ms(self, *, macs: int, batch: int, work: StepWork | None = None) -> float:
        """The part of a step that its multiply-accumulates take."""
        rates = (self.convolution_gigamac_ms, self.padded_gigamac_ms, self.matrix_gigamac_ms)
        if work is None or not any(rates):
            return batch * macs / 1e9 * self.gigamac_ms
        done = (work.convolution_macs, work.padded_macs, work.matrix_macs)
        return sum(rate * count / 1e9 for rate, count in zip(rates, done, strict=True))

    def start_ms(self, graph_bytes: int = 0) -> float:
        """What a step of a graph takes whatever its batch, each time it is run; 0 bytes: a usual graph."""
        return (
            graph_bytes / 1e3 * self.graph_kilobyte_ms if graph_bytes and self.graph_kilobyte_ms else self.constant_ms
        )

    def step_ms(
        self,
        *,
        macs: int,
        batch: int,
        live_bytes: int,
        parameters: int = 0,
        graph_bytes: int = 0,
        work: StepWork | None = None,
    ) -> float:
        """The step of an artifact whose manifest says so; parameters and graph may be unknown, 0, and work, None."""
        activations = max(0, live_bytes - PARAMETER_LIVE_BYTES * parameters)
        moved = activations / 1e6 * self.megabyte_ms + parameters / 1e6 * self.megaparameter_ms
        return self.start_ms(graph_bytes) + self.work_ms(macs=macs, batch=batch, work=work) + moved


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A device at one moment. None and empty mean: not known.

    Attributes:
        budget_bytes: what supervisor and trainer together may reach, peak RSS; 0 when the owner set none.
        ram_bytes, free_ram_bytes: physical memory and what the system calls available.
        cpu_count: logical processors the agent may use.
        cpu_model: ``Cortex-A72``, or the processor's name on a PC.
        machine: architecture (``aarch64``, ``x86_64``).
        system: kernel and its release.
        charging: on external power, which a battery that is full or kept where it is counts as.
        supervisor_idle_bytes: RSS of the supervisor when idle.
        trainer_idle_bytes: runtime name -> RSS of a trainer with that runtime loaded, before any artifact.
        native_idle_bytes: the same of a trainer without Python, where one is here that reads the device's data; a
            profile without any is written without the field.
        max_threads: runtime name -> most threads a step of it uses here; absent: as many as ordered.
        probed_at: seconds since 1970.
        sparse_below: runtime name -> kind of layer (``linear``, ``convolution``) -> density below which a layer's step
            is faster with its kept weights alone, measured when the trainer started; absent: there are no such kernels.
        board: ``Raspberry Pi 5 Model B Rev 1.0``; product name on a PC.
        cores: every processor of the machine, by kind, fastest kind first.
        cpu_mhz, cpu_max_mhz: of the fastest processor, now and at most.
        throttling: why the processor is slowed now, by the names of :mod:`profiles.sensors`; () when it is not.
        memory_limit_bytes: what a control group allows, the smallest limit above this process.
        storage_total_bytes: of the file system that holds the agent's store, as ``storage_free_bytes``.
        link_bytes_per_s: to the coordinator, measured by whom ``link_method`` names, at ``link_measured_at``
            (seconds since 1970).
        os_name: distribution or Android release.
        python: version of the supervisor's interpreter.
        runtimes: runtime name -> version.
        sources: field -> the file, call or datasheet its value came from.
        memory_lines: runtime name -> how its predictions of memory compare with what was measured on this device.
        step_lines: runtime name -> the time of its steps on this device, a line for every number of threads measured.
    """

    device: Name
    budget_bytes: Size = 0
    ram_bytes: Size = 0
    free_ram_bytes: Size = 0
    cpu_count: Processors = 1
    cpu_model: Name = ""
    machine: Name = ""
    system: Text = ""
    storage_free_bytes: Count = 0
    temperature_c: Degrees | None = None
    battery_percent: Degrees | None = None
    charging: bool | None = None
    supervisor_idle_bytes: Size = 0
    trainer_idle_bytes: Annotated[dict[Name, Size], AFew] = {}
    probed_at: Amount = 0.0
    max_threads: Annotated[dict[Name, Processors], AFew] = {}
    sparse_below: Annotated[dict[Name, Annotated[dict[Name, Coefficient], AFew]], AFew] = {}
    board: Name = ""
    cores: Annotated[tuple[CoreGroup, ...], AFew] = ()
    cpu_mhz: Amount | None = None
    cpu_max_mhz: Amount | None = None
    throttling: Annotated[tuple[Name, ...], AFew] | None = None
    memory_limit_bytes: Count | None = None
    storage_total_bytes: Count = 0
    link_bytes_per_s: Amount | None = None
    link_measured_at: Amount = 0.0
    link_method: Name = ""
    os_name: Name = ""
    python: Name = ""
    runtimes: Annotated[dict[Name, Name], AFew] = {}
    sources: Annotated[dict[Name, Text], AFew] = {}
    memory_lines: Annotated[dict[Name, MemoryLine], AFew] = {}
    step_lines: Annotated[dict[Name, Annotated[tuple[StepLine, ...], AFew]], AFew] = {}
    native_idle_bytes: Annotated[dict[Name, Size], AFew] | msgspec.UnsetType = msgspec.UNSET

    def for_native_orders(self) -> DeviceProfile:
        """The device as orders find it that a trainer without Python can carry out."""
        if self.native_idle_bytes is msgspec.UNSET:
            return self
        return msgspec.structs.replace(self, trainer_idle_bytes=self.trainer_idle_bytes | self.native_idle_bytes)

    @property
    def ceiling_bytes(self) -> int:
        """What supervisor and trainer can reach at most: the budget, or a control group's limit or the memory itself.

        The smallest of those that are known; 0 when none is. Only the budget is theirs alone.
        """
        return min(filter(None, (self.budget_bytes, self.memory_limit_bytes, self.ram_bytes)), default=0)
