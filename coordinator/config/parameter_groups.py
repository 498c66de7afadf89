"""``[[training.groups]]`` of a run file: parameters with a learning rate or a weight decay of their own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from coordinator.config.table_reader import TableReader


class ParameterGroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One group; of several that match a parameter the first counts.

    Attributes:
        match: name pattern of the model's parameters. Example: ``"head.*"``.
        lr_factor: their learning rate is so many times ``lr``, in every round. Example: ``10.0``.
        weight_decay: in place of ``[training] weight-decay``; None = that one. Example: ``0.0``.
    """

    match: str
    lr_factor: float = 1.0
    weight_decay: float | None = None

    @property
    def decay_kind(self) -> Literal["step", "own", "none"]:
        """What is compiled: ``step``, ``own`` or ``none``."""
        if self.weight_decay is None:
            return "step"
        return "own" if self.weight_decay > 0 else "none"


def read_groups(table: TableReader) -> tuple[ParameterGroupConfig, ...]:
    """The groups of ``[training]``, in their order."""
    groups: list[ParameterGroupConfig] = []
    for entry in table.tables("groups"):
        group = ParameterGroupConfig(
            match=entry.text("match"),
            lr_factor=entry.number("lr-factor", 1.0, low=0.0, high=1e6),
            weight_decay=None if entry.raw("weight-decay") is None else entry.number("weight-decay", low=0.0),
        )
        entry.finish()
        if entry.has("lr-factor") and entry.raw("lr-factor") == 0:
            entry.problem("lr-factor", "0 moves nothing, yet trains and sends it all; freeze layers with the method")
        if not entry.has("lr-factor") and not entry.has("weight-decay"):
            entry.problem(
                "match", f"'{group.match}' gets neither lr-factor nor weight-decay; give one, or leave it out"
            )
        if group.match and any(group.match == other.match for other in groups):
            entry.problem("match", f"'{group.match}' is named by an earlier group, which counts; name it once")
        groups.append(group)
    return tuple(groups)


def check_group_names(
    groups: Sequence[ParameterGroupConfig], parameters: Iterable[str], buffers: Iterable[str], problems: list[str]
) -> None:
    """Check that each pattern names parameters that no earlier group has."""
    names = list(parameters)
    taken: dict[str, int] = {}
    for index, group in enumerate(groups):
        where, matched = f"$.training.groups[{index}].match", [n for n in names if fnmatchcase(n, group.match)]
        left = [name for name in matched if name not in taken]
        if not matched and any(fnmatchcase(name, group.match) for name in buffers):
            problems.append(f"{where}: '{group.match}' names running statistics alone, which no optimizer moves")
        elif not matched:
            problems.append(f"{where}: no parameter is named '{group.match}'; {_near(group.match, names)}")
        elif not left:
            earlier = sorted({taken[name] for name in matched})
            problems.append(
                f"{where}: every parameter that '{group.match}' names is in groups[{earlier[0]}], which comes first; "
                "put the narrower pattern before it"
            )
        taken |= dict.fromkeys(left, index)


def _near(pattern: str, names: Sequence[str]) -> str:
    plain = pattern.replace("*", "").replace("?", "").strip(".")
    near = difflib.get_close_matches(plain, names, n=3, cutoff=0.4)
    if not near:
        parts = list(
            dict.fromkeys(part for name in names for part in (name.rpartition(".")[0], name.partition(".")[0]))
        )
        close = difflib.get_close_matches(plain, parts, n=3, cutoff=0.4)
        near = [name for name in names if any(name.startswith(part) for part in close)][:3]
    return f"near are {', '.join(near)}" if near else f"the last ones are {', '.join(names[-4:])}"
