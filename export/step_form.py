"""How a step is carried out: the same step in less memory, for more time. What it computes does not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from export.training_step import StepSpec

_MICRO, _RECOMPUTE = "micro", "recompute"


@dataclass(frozen=True)
class StepForm:
    """One way to carry out a step.

    Attributes:
        micro_batches: equal parts of the batch that run one after the other, their gradients added up.
        recompute: whether the backward pass computes values of the forward pass again instead of keeping them.
    """

    micro_batches: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ConfigError([f"{self.micro_batches} micro-batches: at least 1 is needed"])

    @property
    def name(self) -> str:
        """``plain``, ``micro:4``, ``recompute`` or ``micro:4+recompute``."""
        parts = [f"{_MICRO}:{self.micro_batches}"] if self.micro_batches > 1 else []
        parts += [_RECOMPUTE] if self.recompute else []
        return "+".join(parts) or "plain"


PLAIN = StepForm()


def form_named(name: str) -> StepForm:
    """The form whose :attr:`StepForm.name` is ``name``.

    Raises:
        ConfigError: there is none.
    """
    micro, recompute = 1, False
    for part in name.split("+") if name != PLAIN.name else ():
        kind, _, count = part.partition(":")
        if kind == _MICRO and count.isdecimal():
            micro = int(count)
        elif part == _RECOMPUTE:
            recompute = True
    form = StepForm(max(1, micro), recompute)
    if form.name != name:
        raise ConfigError([f"'{name}' is no form of a step; forms are plain, micro:4, recompute, micro:4+recompute"])
    return form


def in_form(spec: StepSpec, form: StepForm) -> StepSpec:
    """``spec`` carried out in ``form``."""
    import msgspec

    return msgspec.structs.replace(spec, micro_batches=form.micro_batches, recompute=form.recompute)
