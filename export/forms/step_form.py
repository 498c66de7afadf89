"""How a step is carried out: the same factors or weights, in less memory or from a smaller file.

Micro-batches and recomputation take more time and compute the same; of activations kept in float16 gradients have the
rounding. A shorter window and a base in another precision are of language models alone: the step has the same tensors,
and computes from less context, or beside a coarser base.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from export.training_step import KeptActivations, StepSpec

_MICRO, _RECOMPUTE, _KEEP, _WINDOW, _BASE = "micro", "recompute", "keep", "window", "base"


@dataclass(frozen=True)
class StepForm:
    """One way to carry out a step.

    Attributes:
        micro_batches: equal parts of the batch that run one after the other, their gradients added up.
        recompute: whether the backward pass computes values of the forward pass again instead of keeping them.
        keep: type that activations wait for the backward pass in, ``float16``; empty: that of the step.
        window: symbols of a window, in place of the run's; 0: the run's.
        base: precision of the frozen base, in place of the run's; empty: the run's.
    """

    micro_batches: int = 1
    recompute: bool = False
    keep: KeptActivations = ""
    window: int = 0
    base: str = ""

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ConfigError([f"{self.micro_batches} micro-batches: at least 1 is needed"])

    @property
    def name(self) -> str:
        """``plain``, ``micro:4``, ``recompute``, ``micro:4+recompute``, ``keep:float16`` or ``micro:4+keep:float16``;
        of a language model also ``window:64`` and ``base:int4``, in this order."""
        parts = [f"{_MICRO}:{self.micro_batches}"] if self.micro_batches > 1 else []
        parts += [_RECOMPUTE] if self.recompute else []
        parts += [f"{_KEEP}:{self.keep}"] if self.keep else []
        parts += [f"{_WINDOW}:{self.window}"] if self.window else []
        parts += [f"{_BASE}:{self.base}"] if self.base else []
        return "+".join(parts) or "plain"

    @property
    def of_model(self) -> StepForm:
        """What of it changes the model's input and base: the plain step on these."""
        return StepForm(window=self.window, base=self.base)

    @property
    def of_step(self) -> StepForm:
        """The rest: how the step itself is carried out."""
        return replace(self, window=0, base="")


PLAIN = StepForm()


def form_named(name: str) -> StepForm:
    """The form whose :attr:`StepForm.name` is ``name``.

    Raises:
        ConfigError: there is none.
    """
    micro, recompute, window, base = 1, False, 0, ""
    keep: KeptActivations = ""
    for part in name.split("+") if name != PLAIN.name else ():
        kind, _, value = part.partition(":")
        if kind == _MICRO and value.isdecimal():
            micro = int(value)
        elif kind == _WINDOW and value.isdecimal():
            window = int(value)
        elif kind == _BASE:
            base = value
        elif part == f"{_KEEP}:float16":
            keep = "float16"
        elif part == _RECOMPUTE:
            recompute = True
    form = StepForm(max(1, micro), recompute, keep, window, base)
    if form.name != name:
        raise ConfigError(
            [f"'{name}' is no form of a step; forms are plain, micro:4, recompute, keep:float16, micro:4+recompute"]
        )
    return form


def in_form(spec: StepSpec, form: StepForm) -> StepSpec:
    """``spec`` carried out in ``form``; of its window and base the module and the input are made."""
    import msgspec

    return msgspec.structs.replace(
        spec, micro_batches=form.micro_batches, recompute=form.recompute, kept_activations=form.keep
    )
