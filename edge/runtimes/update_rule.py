"""What follows the gradients of a step: accumulators, clipping, optimizer; on the values in place.

It is outside the program because in place it needs no second copy of the parameters. The rule travels as a small file
of the artifact, the values of its hyper-parameters with each order; a runtime applies it by code of its own.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from edge.contracts.errors import ArtifactCorrupt

FILE_NAME = "update.json"
STEP_SLOT = "optimizer#step"
RULE_ROLES = frozenset({"slot", "accumulator", "grad_mask"})
"""What the rule alone reads: no program takes tensors of these roles."""


class UpdateRule(msgspec.Struct, frozen=True, kw_only=True):
    """Which formula the step ends with, as ``torch.optim`` writes it.

    Attributes:
        kind: ``sgd``, ``adam`` (decay joins the gradient) or ``adamw`` (decoupled decay).
        nesterov: sgd with momentum only.
        undecayed: parameters without weight decay.
    """

    kind: Literal["sgd", "adam", "adamw"]
    nesterov: bool = False
    undecayed: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """JSON with a fixed field order."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> UpdateRule:
        """The rule in ``data``.

        Raises:
            ArtifactCorrupt: it cannot be read.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise ArtifactCorrupt(f"{FILE_NAME} of the artifact cannot be read ({error}); fetch it again") from error
