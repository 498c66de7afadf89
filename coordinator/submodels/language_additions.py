"""Additions of language models: which part takes which, as attributes of the part itself.

Their first values are the method's to draw, as a state of additions alone is what it begins with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from edge.contracts.errors import PlanError
from export.language.additions import Bottleneck, Prefix, Prompt
from export.language.causal_model import Attention, FeedForward

if TYPE_CHECKING:
    from coordinator.submodels.record import Added


def is_language_part(part: nn.Module) -> bool:
    """Whether ``part`` is of a language model."""
    return isinstance(part, Attention | FeedForward | nn.Embedding)


def with_language_addition(path: str, part: nn.Module, added: Added) -> nn.Module:
    """``part`` with a bottleneck behind it, keys and values before its own, or virtual embeddings; in place.

    Raises:
        PlanError: another part than the addition needs, or one without units or positions.
    """
    size = added.size if added.form == "adapter" else added.length
    if size < 1:
        raise PlanError(f"layer '{path}': {added} adds nothing; raise the level")
    if added.form == "adapter" and isinstance(part, FeedForward):
        part.adapter = Bottleneck(part.shape.hidden, size, part.down.weight.device)
    elif added.form == "prefix" and isinstance(part, Attention):
        part.prefix = Prefix(size, part.shape.kv_heads * part.shape.head_size, part.output.weight.device)
    elif added.form == "prompt" and isinstance(part, nn.Embedding):
        part.prompt = Prompt(size, part.embedding_dim, part.weight.device)
    else:
        raise PlanError(f"layer '{path}': a {type(part).__name__} of a language model takes no {added.form}")
    return part
