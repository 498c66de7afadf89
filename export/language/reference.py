"""A language model in torch over its base as the file holds it: each block is made dense while it runs, never all.

What the written step is held to, in float64 and in float32: the module's own blocks under autograd, each one
checkpointed, so that GPT-2 small in float64 takes a few hundred megabytes.
"""

# Dims: B batch, T positions, D hidden, V vocabulary.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from export.language.base_weights import SCALE, dequantised
from export.language.causal_model import CausalModel
from export.tasks.class_places import IGNORED

PROMPT = "embedding.prompt.tokens"
_CHUNK = 8192
"""Symbols of the vocabulary at a time."""


@dataclass(frozen=True)
class Begun:
    """The stream [B, T, D] after the lowest ``blocks`` blocks."""

    blocks: int
    stream: np.ndarray


class LanguageReference:
    """A cut of a language model over values by name.

    Args:
        module: its shapes and classes; its own values are not read and may be on the meta device.
        values: the base's tensors as held, and factors that are not given with each call.
    """

    def __init__(self, module: CausalModel, values: Mapping[str, np.ndarray], dtype: torch.dtype) -> None:
        self._module, self._values, self._dtype = module, values, dtype
        self._shape = module.architecture

    def loss(
        self, factors: Mapping[str, Tensor], symbols: np.ndarray, target: np.ndarray, *, begun: Begun | None = None
    ) -> Tensor:
        """Mean cross-entropy over the positions that count, 0 of none.

        Args:
            begun: what the lowest blocks gave, which are then not run.
        """
        hidden = self.hidden(factors, symbols, begun=begun)
        entropy, counted, _ = self._scored(hidden, factors, target, wants_best=False)
        return (entropy * counted).sum() / torch.clamp(counted.sum(), min=1.0)

    def sums(self, factors: Mapping[str, Tensor], symbols: np.ndarray, target: np.ndarray) -> dict[str, float]:
        """Summed cross-entropy, hits and counted positions."""
        with torch.no_grad():
            entropy, counted, best = self._scored(self.hidden(factors, symbols), factors, target, wants_best=True)
        hit = (best == torch.from_numpy(target).reshape(-1)).to(self._dtype)
        return {
            "entropy": float((entropy * counted).sum()),
            "hits": float((hit * counted).sum()),
            "positions": float(counted.sum()),
        }

    def hidden(
        self,
        factors: Mapping[str, Tensor],
        symbols: np.ndarray,
        *,
        blocks: int | None = None,
        begun: Begun | None = None,
    ) -> Tensor:
        """The stream [B, T, D] after the first ``blocks`` blocks, after all where it is None; from ``begun`` on where
        that is given."""
        x = self._embedded(factors, symbols) if begun is None else torch.from_numpy(begun.stream).to(self._dtype)
        for number, block in enumerate(self._module.blocks[:blocks]):
            if begun is None or number >= begun.blocks:
                x = checkpoint(self._run, f"blocks.{number}", block, factors, x, use_reentrant=False)
        return x

    def _embedded(self, factors: Mapping[str, Tensor], symbols: np.ndarray) -> Tensor:
        """What the first block reads, [B, T, D]; as :meth:`CausalModel.embedded`."""
        module = self._module
        module.check_length(symbols.shape[1])
        x = self._rows("embedding.weight", symbols) * self._shape.embedding_scale
        if module.prompt is not None:
            tokens = factors[PROMPT] if PROMPT in factors else self._dense(PROMPT)
            x = functional_call(module.prompt, {"tokens": tokens}, (x,))
        if self._shape.positions == "learned":
            first = module.places_before
            x = x + self._dense("positions.weight")[first : first + x.shape[1]]
        return x

    def _run(self, path: str, part: nn.Module, factors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        names = [name for name, _ in part.named_parameters()]
        values = {n: factors[f"{path}.{n}"] if f"{path}.{n}" in factors else self._dense(f"{path}.{n}") for n in names}
        return functional_call(part, values, (x,))

    def _scored(
        self, hidden: Tensor, factors: Mapping[str, Tensor], target: np.ndarray, *, wants_best: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of each position [B T]: its cross-entropy, whether it counts, and the likeliest symbol."""
        y = self._run("norm", self._module.norm, factors, self._module.of_symbols(hidden))
        y = y.reshape(-1, self._shape.hidden)
        table = "embedding.weight" if self._shape.tied else "head.weight"
        parts, best, top = [], torch.zeros(len(y), dtype=torch.int64), torch.full((len(y),), -torch.inf)
        for start in range(0, self._shape.vocabulary, _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, self._shape.vocabulary))
            parts.append(checkpoint(self._summed, table, rows, y, use_reentrant=False))
            if wants_best:
                highest, index = (y @ self._rows(table, rows).t()).max(-1)
                best = torch.where(highest > top, index + start, best)
                top = torch.maximum(highest, top)
        flat = target.reshape(-1)
        own = (y * self._rows(table, np.maximum(flat, 0))).sum(-1)
        counted = torch.from_numpy(flat != IGNORED).to(self._dtype)
        return torch.logsumexp(torch.stack(parts), 0) - own, counted, best

    def _summed(self, table: str, rows: np.ndarray, y: Tensor) -> Tensor:
        return torch.logsumexp(y @ self._rows(table, rows).t(), -1)

    def _dense(self, name: str) -> Tensor:
        return torch.from_numpy(dequantised(name, self._values)).to(self._dtype)

    def _rows(self, name: str, index: np.ndarray) -> Tensor:
        """Rows of matrix ``name`` at ``index`` [...], [..., D]."""
        flat = index.reshape(-1)
        part = {n: self._values[n][flat] for n in (name, name + SCALE) if n in self._values}
        rows = torch.from_numpy(dequantised(name, part)).to(self._dtype)
        return rows.reshape(*index.shape, -1)
