"""What a format would do with every layer of a step, found without writing anything: :mod:`export.layer_support`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

    from edge.contracts.errors import ExportRefused
    from export.capture import Capture
    from export.programs import ProgramFunction


@dataclass(frozen=True)
class CapturedStep:
    """A traced step, shared by the formats that trace alike.

    Attributes:
        functions: the programs before tracing.
        programs: the traced ones.
    """

    functions: dict[str, ProgramFunction]
    programs: dict[str, Capture]


Captured = Callable[[frozenset[str]], CapturedStep]
"""From the recurrent layers that a format takes as one operation to the traced step; raises ExportRefused."""


@dataclass(frozen=True)
class Refusal:
    """One operation that a format does not take.

    Attributes:
        layer: path, as :class:`ExportRefused` names it.
        is_gradient: whether the forward pass is taken and only the backward pass is not.
    """

    layer: str
    reason: str
    instead: str
    is_gradient: bool = False


@dataclass
class Survey:
    """All refusals of a step, where exporting it would end at the first, and what is rewritten.

    Attributes:
        rewritten: layer path -> names of the passes that put other operations in the place of its own.
        passes: name -> what the pass does, in a line.
        unseen: layer path -> the layer it is part of, which cannot be traced.
    """

    refusals: list[Refusal] = field(default_factory=list)
    rewritten: dict[str, set[str]] = field(default_factory=dict)
    passes: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)

    def refuse(self, error: ExportRefused, *, is_gradient: bool = False) -> None:
        """Note a refusal, once."""
        refusal = Refusal(error.layer, error.reason, error.instead, is_gradient)
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    def refuses(self, layer: str) -> bool:
        """Whether a refusal of ``layer`` is noted."""
        return any(refusal.layer == layer for refusal in self.refusals)

    def include(self, other: Survey, names: Mapping[str, str]) -> None:
        """Take over what ``other`` says of the layers in ``names``, under the paths they have here."""
        for refusal in other.refusals:
            if refusal.layer in names:
                self.refusals.append(replace(refusal, layer=names[refusal.layer]))
        self.rewritten |= {names[n]: set(passes) for n, passes in other.rewritten.items() if n in names}
        self.unseen |= {names[n]: inside for n, inside in other.unseen.items() if n in names}
        self.passes |= other.passes

    def rewrite(self, layer: str, name: str, meaning: str) -> None:
        """Note that the pass ``name`` rewrites ``layer``; of ``meaning``, a docstring, the first line counts."""
        self.rewritten.setdefault(layer, set()).add(name)
        self.passes[name] = meaning.strip().splitlines()[0].rstrip(".").replace("``", "")


def is_gradient(node: fx.Node) -> bool:
    """Whether ``node`` is part of a layer's backward pass."""
    from export.backward_marks import backward_layer

    return backward_layer(node) is not None
