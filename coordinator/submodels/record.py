"""The LayerCut record: what one device holds of each layer. Every submodel family reads and writes this one record.

A cut is a mapping from module path to :class:`LayerCut`; a module that is not named is held whole and trained.
Source: the four submodel kinds and their compositions (PriSM = factorized and width-scaled, SLT = frozen prefix and
width-scaled head) need a per-layer record, not one enumeration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Form = Literal["spatial", "conv1x1", "linear", "additive_lora"]
"""How a layer is factorized.

``spatial``: 1xk conv to r channels, then kx1 conv (FedHM); ``conv1x1``: kxk conv to r channels, then 1x1 (PriSM);
``linear``: two matrices; ``additive_lora``: frozen dense weight plus two trained factors (FedLoRA).
"""


class Factor(msgspec.Struct, frozen=True):
    """A factorized layer: its form and which components of the spectrum the device holds.

    Attributes:
        components: indices into the server's components, in the order the device holds them; their count is the rank.
    """

    form: Form
    components: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of components held."""
        return len(self.components)


class LayerCut(msgspec.Struct, frozen=True):
    """What a device holds of one layer.

    Attributes:
        frozen: loaded and run forward only: no gradient, no slot, not uploaded.
        out_idx, in_idx: ordered channel indices kept, or None for all of them.
        factor: the factorization, or None for a dense layer.
        mask: name of the boolean mask tensor stored with the assignment, or empty.
        frozen_norm: what a frozen norm normalises with.
    """

    frozen: bool = False
    out_idx: tuple[int, ...] | None = None
    in_idx: tuple[int, ...] | None = None
    factor: Factor | None = None
    mask: str = ""
    frozen_norm: Literal["batch", "static"] = "batch"


Cut = Mapping[str, LayerCut]
"""Module path -> record; the empty mapping is the whole model."""


def cut_to_json(cut: Cut) -> dict[str, Any]:
    """Plain JSON values of a cut, for a manifest's ``build`` and for the ledger; defaults left out."""
    return {path: msgspec.to_builtins(cut[path]) for path in sorted(cut)}


def cut_from_json(value: Mapping[str, Any]) -> dict[str, LayerCut]:
    """The cut that :func:`cut_to_json` wrote."""
    return {path: msgspec.convert(entry, LayerCut) for path, entry in value.items()}


def cut_digest(cut: Cut) -> str:
    """SHA-256 of the cut, hex; equal cuts have equal digests."""
    return hashlib.sha256(msgspec.json.encode(cut_to_json(cut), order="deterministic")).hexdigest()
