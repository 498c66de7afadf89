"""Which format writes a module: that of its runtime, or of language models where it is one."""

from __future__ import annotations

from torch import nn

from edge.contracts.errors import ExportRefused
from edge.runtimes import KNOWN, traits_of
from export.formats import Format, format_for, format_named
from export.language.causal_model import CausalModel


def format_of(module: nn.Module, runtime: str) -> Format:
    """The format that writes ``module`` for ``runtime``: a language model's where it is one.

    Raises:
        ConfigError: as :func:`format_for`.
        ExportRefused: a language model, and a runtime that trains none.
    """
    ordinary = format_for(runtime)
    if not isinstance(module, CausalModel):
        return ordinary
    traits = traits_of(runtime)
    if traits.language_format:
        return format_named(traits.language_format)
    able = [name for name in KNOWN if traits_of(name).language_format]
    raise ExportRefused(
        "(the module itself)",
        f"{runtime} trains no language model: {traits.why_no_language}",
        instead=f"runtime {' or '.join(able)}",
    )
