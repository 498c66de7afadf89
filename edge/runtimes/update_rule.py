"""What follows the gradients of a step: accumulators, clipping, optimizer; on the values in place.

It is outside the program because in place it needs no second copy of the parameters. The rule travels as a small file
of the artifact, the values of its hyper-parameters with each order; a runtime applies it by code of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from edge.contracts.errors import ArtifactCorrupt

FILE_NAME = "update.json"
STEP_SLOT = "optimizer#step"
RULE_ROLES = frozenset({"slot", "accumulator", "grad_mask"})
"""What the rule alone reads: no program takes tensors of these roles."""


_GROUPS = "+groups"
"""Ends the kind of a rule with groups in its file, so that an agent that knows none cannot read it, and refuses."""


class RuleGroup(msgspec.Struct, frozen=True):
    """Parameters with a learning rate or a weight decay of their own.

    Attributes:
        lr_factor: the hyper-parameter that multiplies ``lr``; empty for ``lr`` itself.
        weight_decay: the hyper-parameter that is their weight decay.
    """

    parameters: tuple[str, ...]
    lr_factor: str = ""
    weight_decay: str = "weight_decay"

    def rates(self, hyper: Mapping[str, float]) -> tuple[float, float]:
        """(Learning rate, weight decay) by the values of a step."""
        factor = hyper[self.lr_factor] if self.lr_factor else 1.0
        return hyper["lr"] * factor, hyper.get(self.weight_decay, 0.0)


_PLAIN = RuleGroup(())


class UpdateRule(msgspec.Struct, frozen=True, kw_only=True):
    """Which formula the step ends with, as ``torch.optim`` writes it.

    Attributes:
        kind: ``sgd``, ``adam`` (decay joins the gradient) or ``adamw`` (decoupled decay).
        nesterov: sgd with momentum only.
        undecayed: parameters without weight decay.
        groups: parameters with rates of their own, each in one group at most.
    """

    kind: Literal["sgd", "adam", "adamw"]
    nesterov: bool = False
    undecayed: tuple[str, ...] = ()
    groups: tuple[RuleGroup, ...] = ()

    def rates(self, names: Iterable[str], hyper: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """Parameter -> (learning rate, weight decay) by the values of a step."""
        own = {name: group for group in self.groups for name in group.parameters}
        values = {name: own.get(name, _PLAIN).rates(hyper) for name in names}
        undecayed = frozenset(self.undecayed)
        return {name: (lr, 0.0 if name in undecayed else decay) for name, (lr, decay) in values.items()}

    def to_bytes(self) -> bytes:
        """JSON with a fixed field order."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        if self.groups:
            values["kind"] += _GROUPS
        else:
            del values["groups"]
        return msgspec.json.encode(values)

    @classmethod
    def from_bytes(cls, data: bytes) -> UpdateRule:
        """The rule in ``data``.

        Raises:
            ArtifactCorrupt: it cannot be read.
        """
        try:
            values = msgspec.json.decode(data, type=dict[str, Any])
            if values.get("groups"):
                values["kind"] = str(values.get("kind")).removesuffix(_GROUPS)
            return msgspec.convert(values, cls)
        except msgspec.MsgspecError as error:
            raise ArtifactCorrupt(f"{FILE_NAME} of the artifact cannot be read ({error}); fetch it again") from error
