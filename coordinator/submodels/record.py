"""The LayerCut record: what one device holds of each layer. Every submodel family reads and writes this one record.

A cut is a mapping from module path to :class:`LayerCut`; a module that is not named is held whole and trained.
Source: the four submodel kinds and their compositions (PriSM = factorized and width-scaled, SLT = frozen prefix and
width-scaled head) need a per-layer record, not one enumeration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

Form = Literal["spatial", "conv1x1", "linear", "recurrent", "additive_lora"]
"""How a layer is factorized.

``spatial``: 1xk conv to r channels, then kx1 conv (FedHM); ``conv1x1``: kxk conv to r channels, then 1x1 (PriSM);
``linear``: two matrices; ``recurrent``: two matrices for one gate matrix of an LSTM, named by the parameter's own path;
``additive_lora``: frozen dense weight plus two trained factors (FedLoRA).
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


class Added(msgspec.Struct, frozen=True):
    """Trained parts beside a frozen one, which keeps its names; :mod:`coordinator.submodels.additions` builds them.

    Attributes:
        form: ``adapter``: a bottleneck behind a linear layer; ``prefix``: keys and values before those of an attention;
            ``prompt``: tokens before those of a block, or of a sequence of blocks; ``difference``: a matrix added to a
            linear layer's weight.
        size: units of the bottleneck, or hidden units of a prefix's re-parameterisation; 0 where there are none.
        length: tokens of a prefix or a prompt.
    """

    form: Literal["adapter", "prefix", "prompt", "difference"]
    size: int = 0
    length: int = 0


class LayerCut(msgspec.Struct, frozen=True):
    """What a device holds of one layer.

    Attributes:
        frozen: loaded and run forward only: no gradient, no slot, not uploaded.
        out_idx, in_idx: ordered indices of the outputs and inputs kept, or None for all of them. A norm, an embedding
            and a bare parameter have outputs alone. On an identity shortcut ``in_idx`` are the channels that come in
            and ``out_idx``, among them, those that are passed on. Linear layers behind a flatten count columns.
        factor: the factorization, or None for a dense layer.
        mask: name of the boolean mask tensor stored with the assignment, or empty; values, not shapes, so that one
            artifact serves every mask.
        scored: the device sums the squared gradients of the layer's weight, over masked entries too.
        frozen_norm: what a frozen norm normalises with.
        spread: of a factorized layer, the outputs kept lie first among so many and the rest are zeros, so that what
            reads them stays whole (PriSM without its input cut); 0 where the outputs kept are all.
        scale: outputs are divided by it in training (HeteroFL's Scaler).
        atoms: of the record of the whole module, path "": the device holds these atoms, each of them a copy of the
            module with the rest of the cut (Split-Mix).
        added: trained parts beside what is there, or None.
        read_idx: of a linear layer, those of the inputs that come in (``in_idx``) that it reads; it has no weights for
            the others. None for all that come in.
        trained_rows: of a layer held whole, the output channels whose weights are trained, ascending; the others are
            frozen. None: all of them, or none where the layer or its weight is frozen (sparse updates).
    """

    frozen: bool = False
    out_idx: tuple[int, ...] | None = None
    in_idx: tuple[int, ...] | None = None
    factor: Factor | None = None
    mask: str = ""
    scored: bool = False
    frozen_norm: Literal["batch", "static"] = "batch"
    spread: int = 0
    scale: float = 1.0
    atoms: tuple[int, ...] = ()
    added: Added | None = None
    read_idx: tuple[int, ...] | None = None
    trained_rows: tuple[int, ...] | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether outputs or inputs are left out."""
        return self.out_idx is not None or self.in_idx is not None or self.read_idx is not None


Cut = Mapping[str, LayerCut]
"""Module path -> record; the empty mapping is the whole model."""


_INDICES = ("out_idx", "in_idx", "read_idx", "trained_rows")


def cut_to_json(cut: Cut) -> dict[str, Any]:
    """Plain JSON values of a cut, for a manifest's ``build`` and for the ledger; defaults left out.

    Index sets are written as runs, ``"0-40,44"``: the prefixes most methods keep would fill a manifest otherwise.
    """
    result = {}
    for path in sorted(cut):
        entry = {
            name: value
            for name, value in msgspec.to_builtins(cut[path]).items()
            if value != msgspec.to_builtins(_WHOLE)[name]
        }
        for name in _INDICES:
            if name in entry:
                entry[name] = _runs(entry[name])
        result[path] = entry
    return result


def cut_from_json(value: Mapping[str, Any]) -> dict[str, LayerCut]:
    """The cut that :func:`cut_to_json` wrote."""
    cut = {}
    for path, entry in value.items():
        expanded = {name: _indices(v) if name in _INDICES and isinstance(v, str) else v for name, v in entry.items()}
        cut[path] = msgspec.convert(expanded, LayerCut)
    return cut


def cut_digest(cut: Cut) -> str:
    """SHA-256 of the cut, hex; equal cuts have equal digests."""
    return hashlib.sha256(msgspec.json.encode(cut_to_json(cut), order="deterministic")).hexdigest()


_WHOLE = LayerCut()


def _runs(indices: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def _indices(text: str) -> list[int]:
    indices: list[int] = []
    for run in text.split(",") if text else []:
        first, _, last = run.partition("-")
        indices += range(int(first), int(last or first) + 1)
    return indices
