"""Models by a prefix, a file for each: other packages' as ``timm:NAME``, ``torchvision:NAME``, ``transformers:TYPE``,
and language models as ``language:NAME``.

The packages are not part of an installation; a name of one that is missing says what to install. Weights are random:
nothing is fetched, and ``[model] weights`` takes a file.
"""

from __future__ import annotations

from coordinator.models.libraries.library import Library

__all__ = ["LIBRARIES", "Library", "is_own", "library_of"]

LIBRARIES: dict[str, Library] = {
    "language": Library("", "coordinator.models.libraries.language_models", "gpt2"),
    "timm": Library("timm", "coordinator.models.libraries.timm_models", "resnet10t"),
    "torchvision": Library("torchvision", "coordinator.models.libraries.torchvision_models", "resnet18"),
    "transformers": Library("transformers", "coordinator.models.libraries.transformers_models", "vit"),
}


def library_of(name: str) -> Library | None:
    """The package that builds ``name``; None for a model of this project, or one's own."""
    package, colon, _ = name.partition(":")
    return LIBRARIES.get(package) if colon else None


def is_own(name: str) -> bool:
    """Whether ``name`` is a function of the user's, ``package.module:function``: to build it is to run their code."""
    return ":" in name and library_of(name) is None
