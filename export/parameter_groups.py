"""Which parameters of a step move at a rate, or decay by a factor, of their own: a step's groups by name patterns.

A pattern names parameters of the whole model. In a cut, the factors ``<layer>.u`` and ``<layer>.v`` stand for
``<layer>.weight`` and are in its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor

from edge.runtimes.update_rule import RuleGroup, UpdateRule
from export.training_step import ParameterGroup, StepSpec

_FACTORS = frozenset({"u", "v"})


class Rate(NamedTuple):
    """What a parameter moves by: names of scalar inputs.

    Attributes:
        lr_factor: times ``lr``; empty for ``lr`` itself.
        weight_decay: empty for none.
    """

    lr_factor: str
    weight_decay: str

    def lr(self, hyper: Mapping[str, Tensor]) -> Tensor:
        """The learning rate."""
        return hyper["lr"] * hyper[self.lr_factor] if self.lr_factor else hyper["lr"]


def group_of(name: str, patterns: Sequence[str]) -> int | None:
    """Index of the first of ``patterns`` that the parameter ``name`` of a cut or of the whole model is under."""
    layer, _, last = name.rpartition(".")
    names = (name, f"{layer}.weight") if layer and last in _FACTORS else (name,)
    for index, pattern in enumerate(patterns):
        if any(fnmatchcase(known, pattern) for known in names):
            return index
    return None


def rates(spec: StepSpec, names: Iterable[str]) -> dict[str, Rate]:
    """Parameter -> what it moves by. Factors of a pair never decay."""
    patterns = [group.match for group in spec.groups]
    found = {}
    for name in names:
        index = group_of(name, patterns)
        group = ParameterGroup(match="") if index is None else spec.groups[index]
        decay = "weight_decay" if spec.optimizer.weight_decay else ""
        if group.weight_decay != "step":
            decay = group.decay_name((index or 0) + 1) if group.weight_decay == "own" else ""
        factor = group.factor_name((index or 0) + 1) if group.lr_factor else ""
        found[name] = Rate(factor, "" if name in spec.factors else decay)
    return found


def update_rule(spec: StepSpec, trained: Iterable[str]) -> UpdateRule:
    """The step's end as a rule, for runtimes that apply one to the ``trained`` parameters."""
    own = rates(spec, trained)
    plain = Rate("", "weight_decay" if spec.optimizer.weight_decay else "")
    undecayed = sorted(spec.factors | {n for n, rate in own.items() if plain.weight_decay and not rate.weight_decay})
    groups = {
        rate: tuple(sorted(n for n, other in own.items() if other == rate))
        for rate in dict.fromkeys(own.values())
        if rate.lr_factor or rate.weight_decay not in ("", "weight_decay")
    }
    return UpdateRule(
        kind=spec.optimizer.kind,
        nesterov=spec.optimizer.nesterov,
        undecayed=tuple(undecayed),
        groups=tuple(RuleGroup(names, *rate) for rate, names in groups.items()),
    )
