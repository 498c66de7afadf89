"""``[cohort]``, ``[planner]`` and ``[runtime]`` of a run file: which devices take part, and what each may be given."""

from __future__ import annotations

import typing
from typing import Any, Literal, get_args

import msgspec

from coordinator.config.clusters import read_tags
from coordinator.config.table_reader import TableReader
from edge.runtimes import DEFAULT


class LocalGroup(msgspec.Struct, frozen=True, kw_only=True):
    """``[[cohort.local]]``: agents that a run starts on this machine.

    Attributes:
        count: agents of the group. Example: ``3``.
        budget_mb: memory that each may use, in MB; 0 = no limit. Example: ``114``.
        threads: most threads of a step; 0 = no limit. Example: ``1``.
        runtime: one of the run's runtimes; empty = the first of them. Example: ``DEFAULT``.
        level: what the group's devices hold, a level of the method by name or value; with a budget beside it, only
            devices that it fits are given it. Example: ``"8"``.
        ceiling: with ``budget``, the kernel holds each device to its budget
            (:mod:`coordinator.local_devices.ceilings`). Example: ``"budget"``.
        cpu_share: share of one core to which the kernel holds each device; 0 = no limit. Example: ``0.5``.
        tags: what the group's devices say they belong to. Example: ``["north"]``.
    """

    count: int
    budget_mb: float = 0.0
    threads: int = 0
    runtime: str = ""
    level: str = ""
    ceiling: Literal["none", "budget"] = "none"
    cpu_share: float = 0.0
    tags: tuple[str, ...] = ()


class CohortConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[cohort]``: which devices take part in a round.

    Attributes:
        size: devices per round; without this and ``fraction`` all local devices. Example: ``20``.
        fraction: share of the local devices per round, in place of ``size``. Example: ``0.5``.
        min_reports: least updates that a round needs; with fewer at the deadline it is repeated. Example: ``4``.
        deadline_s: seconds from publishing to the end of a round. Example: ``300``.
        over_selection: devices ordered beyond ``size``, against stragglers: the round ends with ``size`` updates.
            Example: ``2``.
        leave_after_s: the round ends when all who are awaited have been away so long and ``min_reports`` are in; 0 = it
            waits for them until the deadline. Example: ``30``.
        join_timeout_s: seconds to wait for ``size`` devices to be there. Example: ``600``.
        capacity: ``fixed``, a local device has its group's level; ``dynamic``, it draws a group anew in every round,
            with the groups' shares of devices as probabilities. Example: ``"dynamic"``.
        tags: only devices with one of them take part; empty = all. Example: ``["north"]``.
        local: ``[[cohort.local]]``, groups of agents that are started on this machine. Example: ``[{ count = 3,
            budget-mb = 114 }]``.
    """

    size: int
    min_reports: int = 1
    deadline_s: float = 600.0
    over_selection: int = 0
    leave_after_s: float = 0.0
    join_timeout_s: float = 60.0
    capacity: Literal["fixed", "dynamic"] = "fixed"
    tags: tuple[str, ...] = ()
    local: tuple[LocalGroup, ...] = ()

    @property
    def local_devices(self) -> int:
        """Agents this machine starts."""
        return sum(group.count for group in self.local)

    @property
    def local_tags(self) -> dict[str, tuple[str, ...]]:
        """Id -> tags of each local device, group after group, as ``apportion run`` names them."""
        tags = [group.tags for group in self.local for _ in range(group.count)]
        return {f"device-{index:02d}": of for index, of in enumerate(tags)}


class PlannerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[planner]``: what every device is held to, and what a plan may choose among.

    Attributes:
        headroom: share of a step's memory left free. Example: ``0.2``.
        adapt: let measurements of this run correct predictions (and give up bit-identity). Example: ``true``.
        runtimes: of several allowed ones that a device has: ``first`` takes the first, ``best`` the one that carries
            the larger level, the first of equals. Example: ``"first"``.
        micro_batches: whether a step that does not fit may be carried out in micro-batches (gradient accumulation).
            Example: ``false``.
        recompute: whether a step that does not fit may compute activations again in the backward pass (activation
            checkpointing). Example: ``false``.
        float16_activations: whether a step that does not fit may keep activations for the backward pass in float16;
            its gradients have the rounding. Example: ``true``.
        max_step_s: cuts whose predicted step takes longer are passed over; 0 = none. Example: ``2.0``.
        export_cache: folder that artifacts are kept in across runs; empty = a run keeps its own alone. Example:
            ``"exports"``.
        windows: of a language model: shorter windows, in symbols, for devices that no level fits with
            ``[model] input``. Example: ``[64, 32]``.
        bases: of a language model: further precisions of the base, for devices whose storage has no room for that of
            the run. Example: ``["int4"]``.
    """

    headroom: float = 0.1
    adapt: bool = False
    runtimes: Literal["first", "best"] = "best"
    micro_batches: bool = True
    recompute: bool = True
    float16_activations: bool = False
    max_step_s: float = 0.0
    export_cache: str = ""
    windows: tuple[int, ...] = ()
    bases: tuple[str, ...] = ()


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[runtime]``: what devices train with.

    Attributes:
        names: ``name`` in the file, one runtime or a list in order of preference: a device gets artifacts for one that
            it has. One without any of them does not take part. Example: ``[DEFAULT]``.
        environments: runtime -> folder of the virtual environment its trainers run in on this machine. Without it:
            ``edge.runtimes.environments.runtime_python``. Example: ``{ DEFAULT = "environments/training" }``.
        environment: the same for the one runtime of ``name``. Example: ``"environments/training"``.
        threads: intra-op threads of a step, which a device may lower; 0 = as many as are fastest by what was measured
            on the device, without that 1, in browsers 2. Example: ``2``.
    """

    names: tuple[str, ...] = (DEFAULT,)
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


def read_cohort(table: TableReader, runtime: RuntimeConfig) -> tuple[CohortConfig, int]:
    """The cohort, and the number of devices its groups have."""
    default = CohortConfig(size=1)
    groups = []
    for entry in table.tables("local"):
        groups.append(
            LocalGroup(
                count=entry.integer("count", low=1, high=10_000),
                budget_mb=entry.number("budget-mb", 0.0, low=0.0),
                threads=entry.integer("threads", 0, low=0, high=1024),
                runtime=_group_runtime(entry, runtime),
                level=_group_level(entry),
                ceiling=_group_ceiling(entry),
                cpu_share=entry.number("cpu-share", 0.0, low=0.0, high=1024.0),
                tags=read_tags(entry, "tags"),
            )
        )
        entry.finish()
    local = sum(group.count for group in groups)
    if table.has("size") and table.has("fraction"):
        table.problem("fraction", "give size or fraction, not both")
    if not table.has("size") and not local:
        why = "a fraction is one of local devices and there are none" if table.has("fraction") else "number of devices"
        table.problem("size", f"is missing ({why}); give it, or [[cohort.local]] groups")
    share = table.number("fraction", 1.0, low=0.0, high=1.0, above_low=True)
    size = table.integer("size", max(1, round(share * local)), low=1, high=1_000_000)
    cohort = CohortConfig(
        size=size,
        min_reports=table.integer("min-reports", default.min_reports, low=1),
        deadline_s=table.number("deadline-s", default.deadline_s, low=1.0),
        over_selection=table.integer("over-selection", default.over_selection, low=0, high=1_000_000),
        leave_after_s=table.number("leave-after-s", default.leave_after_s, low=0.0),
        join_timeout_s=table.number("join-timeout-s", default.join_timeout_s, low=0.0),
        capacity=table.choice("capacity", get_args(typing.get_type_hints(CohortConfig)["capacity"]), default.capacity),
        tags=read_tags(table, "tags"),
        local=tuple(groups),
    )
    if cohort.min_reports > size:
        table.problem("min-reports", f"{cohort.min_reports} is more than the {size} devices of a round")
    return cohort, local


def _group_runtime(group: TableReader, runtime: RuntimeConfig) -> str:
    from edge.runtimes import KNOWN, RUNTIMES

    name: str = group.choice("runtime", set(KNOWN), "")
    allowed = ", ".join(runtime.names)
    if name in KNOWN and name not in runtime.names:
        group.problem("runtime", f"'{name}' is not one of $.runtime.name ({allowed}); add it there")
    elif runtime.of_group(LocalGroup(count=1, runtime=name)) not in RUNTIMES:
        here = ", ".join(RUNTIMES)
        group.problem("runtime", f"'{name or allowed}' is for agents of other kinds; those started here have {here}")
    return name


def _group_ceiling(group: TableReader) -> Any:
    ceiling = group.choice("ceiling", get_args(typing.get_type_hints(LocalGroup)["ceiling"]), "none")
    if ceiling == "budget" and not group.raw("budget-mb"):
        group.problem("ceiling", '"budget" holds a device to its budget-mb, and there is none; give one')
    return ceiling


def _group_level(group: TableReader) -> str:
    """A level by name or, as a number, by value; which there are is the method's business."""
    value = group.raw("level", "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value:.12g}"
    if not isinstance(value, str):
        group.problem("level", f"a level's name or value expected, {value!r} found")
        value = ""
    return value
