"""The base file of a run's language model: made once, kept in the blob store, known in the ledger by what it is of.

A run that is resumed, or whose store lost the file, makes it again; other bytes than devices were given are refused.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from coordinator.exporting.cut_exporter import dense_module
from coordinator.language.base import base_bytes, write_base
from coordinator.language.source import LanguageSource, is_language, source_of_build
from edge.contracts.errors import ConfigError, StoreFull
from edge.contracts.plan import BlobRef

if TYPE_CHECKING:
    from torch import nn

    from coordinator.blobs.blob_store import BlobStore
    from coordinator.config.run_config import RunConfig
    from coordinator.ledger.ledger import Ledger
    from export.language.causal_model import CausalModel


def base_key(config: RunConfig) -> str:
    """What the base file is found by in a run's ledger: model, precision and seed."""
    model = config.model
    named = {"base": model.build, "options": model.options, "seed": config.federation.seed}
    return hashlib.sha256(msgspec.json.encode(named, order="deterministic")).hexdigest()


def stored_base(config: RunConfig, ledger: Ledger, blobs: BlobStore) -> BlobRef:
    """The run's base file, in the store and the ledger.

    Raises:
        ConfigError: the model's files are not what they were when devices were given their base.
        StoreFull: there is no room for it.
    """
    known = ledger.artifacts.find(base_key(config))
    module = cast("CausalModel", dense_module(config))
    size = base_bytes(module)
    if known is not None and known in blobs and blobs.size(known) == size:
        return BlobRef(known, size, "raw", size)
    if size > (room := blobs.room_bytes()):
        raise StoreFull(
            f"{blobs.root}: the base of {config.model.build} needs {size} bytes, {room} can be put there; free some "
            "disk space or raise store.quota-mb, then resume"
        )
    with tempfile.TemporaryDirectory(prefix="apportion-base-") as folder:
        path = Path(folder) / "base.safetensors"
        write_base(path, module, _source(config).values(config.federation.seed))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if known is not None and digest != known:
            raise ConfigError(
                [
                    f"$.model.build: {config.model.build} now gives the base {digest[:12]}, devices of this run have "
                    f"{known[:12]}; put the model's files back as they were, or begin another run"
                ]
            )
        blobs.put_file(path)
    ledger.blobs.add(digest, size)
    ledger.artifacts.add(base_key(config), digest)
    return BlobRef(digest, size, "raw", size)


def base_size(config: RunConfig, dense: nn.Module) -> BlobRef | None:
    """What a base file would be to traffic, under its key instead of a digest; None of a model without one."""
    if not is_language(config.model.build):
        return None
    size = base_bytes(cast("CausalModel", dense))
    return BlobRef(base_key(config), size, "raw", size)


def computing_module(config: RunConfig, device: str = "cpu") -> nn.Module:
    """The whole model of a run for computing with it: a fresh one; of a language model the one of this process, whose
    values are those of its base file and no parameters.

    Raises:
        ConfigError: as :func:`coordinator.exporting.cut_exporter.dense_module`.
    """
    if not is_language(config.model.build):
        return dense_module(config)
    return _with_base(_Recipe(config), device)


class _Recipe:
    """A configuration, equal to others of the same base and input."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._key = (base_key(config), config.model.input)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Recipe) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=1)
def _with_base(recipe: _Recipe, device: str) -> nn.Module:
    from export.language.held_base import with_base

    config = recipe.config
    module = cast("CausalModel", dense_module(config))
    return with_base(module, _source(config).values(config.federation.seed), device=device)


def _source(config: RunConfig) -> LanguageSource:
    return source_of_build(config.model.build, config.model.options)
