"""``[cohort]``, ``[planner]`` and ``[runtime]`` of a run file: which devices take part, and what each may be given."""

from __future__ import annotations

from typing import Literal

import msgspec


class LocalGroup(msgspec.Struct, frozen=True, kw_only=True):
    """``[[cohort.local]]``: ``count`` agents started on this machine, each with ``budget_mb`` MB of memory and at most
    ``threads`` (0 = no limit), and with one of the run's runtimes (empty = the first of them).

    ``level``, a level of the method by name or value, says what the group's devices hold, instead of a budget.
    ``ceiling``: with ``budget``, the kernel holds each device to its budget (:mod:`coordinator.ceilings`), and to
    ``cpu_share`` of one core (0 = no limit) in any case."""

    count: int
    budget_mb: float = 0.0
    threads: int = 0
    runtime: str = ""
    level: str = ""
    ceiling: Literal["none", "budget"] = "none"
    cpu_share: float = 0.0


class CohortConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[cohort]``: which devices take part in a round.

    Attributes:
        size: devices per round. ``fraction`` in the file is a share of the local devices; without either, all of them.
        min_reports: fewer updates at the deadline and the round is repeated.
        deadline_s: seconds from publishing to the end of a round.
        over_selection: devices ordered beyond ``size``, against stragglers: the round ends with ``size`` updates.
        leave_after_s: the round ends when all who are awaited have been away so long and ``min_reports`` are in; 0 =
            it waits for them until the deadline.
        join_timeout_s: seconds to wait for ``size`` devices to be there.
        capacity: ``fixed``, a local device has its group's level; ``dynamic``, it draws a group anew in every round,
            with the groups' shares of devices as probabilities.
    """

    size: int
    min_reports: int = 1
    deadline_s: float = 600.0
    over_selection: int = 0
    leave_after_s: float = 0.0
    join_timeout_s: float = 60.0
    capacity: Literal["fixed", "dynamic"] = "fixed"
    local: tuple[LocalGroup, ...] = ()

    @property
    def local_devices(self) -> int:
        """Agents this machine starts."""
        return sum(group.count for group in self.local)


class PlannerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[planner]``: what every device is held to, and what a plan may choose among.

    Attributes:
        headroom: share of a step's memory left free.
        adapt: let measurements of this run correct predictions (and give up bit-identity).
        runtimes: of several allowed ones that a device has: ``first`` takes the first, ``best`` the one that carries
            the larger level, the first of equals.
        micro_batches, recompute: whether a step that does not fit may be carried out in these forms.
        max_step_s: cuts whose predicted step takes longer are passed over; 0 = none.
        export_cache: folder that artifacts are kept in across runs; empty = a run keeps its own alone.
    """

    headroom: float = 0.1
    adapt: bool = False
    runtimes: Literal["first", "best"] = "best"
    micro_batches: bool = True
    recompute: bool = True
    max_step_s: float = 0.0
    export_cache: str = ""


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[runtime]``: what devices train with.

    Attributes:
        names: ``name`` in the file, one runtime or a list in order of preference: a device gets artifacts for one that
            it has. One without any of them does not take part.
        environments: runtime -> folder of the virtual environment its trainers run in on this machine; for one runtime,
            the file may say ``environment = "..."``. Without it: ``edge.runtimes.environments.runtime_python``.
        threads: intra-op threads of a step, which a device may lower; 0 = as many as are fastest by what was measured
            on the device, without that 1, in browsers 2.
    """

    names: tuple[str, ...] = ("onnxruntime",)
    environments: dict[str, str] = {}
    threads: int = 0

    @property
    def threads_here(self) -> int:
        """Threads of computations of this machine, which no device decides about."""
        return self.threads or 1

    def of_group(self, group: LocalGroup) -> str:
        """The runtime of the agents of ``group``: the first of the run's that agents of this machine can have."""
        from edge.runtimes import RUNTIMES

        return group.runtime or next((name for name in self.names if name in RUNTIMES), self.names[0])
