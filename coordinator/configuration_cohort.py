"""The ``[cohort]`` table and its local groups, read and checked."""

from __future__ import annotations

import typing
from typing import Any, get_args

from coordinator.configuration_planning import CohortConfig, LocalGroup, RuntimeConfig
from coordinator.configuration_reader import TableReader


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
        local=tuple(groups),
    )
    if cohort.min_reports > size:
        table.problem("min-reports", f"{cohort.min_reports} is more than the {size} devices of a round")
    return cohort, local


def _group_runtime(group: TableReader, runtime: RuntimeConfig) -> str:
    from edge.runtimes import RUNTIMES
    from export.formats import FORMATS

    name: str = group.choice("runtime", {*RUNTIMES, *FORMATS}, "")
    allowed = ", ".join(runtime.names)
    if name in FORMATS and name not in runtime.names:
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
    if value and group.raw("budget-mb"):
        group.problem("level", "give a level or a budget-mb, not both")
    return value
