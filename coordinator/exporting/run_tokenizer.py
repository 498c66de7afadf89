"""The tokenizer of a run's language model: found once, sent with every order by its digest, and never changed.

Symbols are what a model is trained on. A device that made them with another tokenizer would train it on other texts, so
each order names the run's own, and a device with raw texts needs none.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from coordinator.language.source import LanguageSource, source_of_build
from edge.contracts.errors import ConfigError
from edge.contracts.plan import BlobRef
from edge.training.sources.description import read_description

if TYPE_CHECKING:
    from coordinator.blobs.blob_store import BlobStore
    from coordinator.config.run_config import RunConfig
    from coordinator.ledger.ledger import Ledger

_NAME = "tokenizer.json"


def found_tokenizer(config: RunConfig) -> Path | None:
    """The tokenizer of the model's folder, or the one that the held-out text is read with.

    Raises:
        ConfigError: as :func:`coordinator.language.source.source_of`.
        DataError: ``data.toml`` of the held-out text cannot be read.
    """
    source = _source(config)
    if source.folder is not None and (path := source.folder / _NAME).is_file():
        return path
    return _of_held_out(config)


def stored_tokenizer(config: RunConfig, ledger: Ledger, blobs: BlobStore) -> BlobRef | None:
    """The run's tokenizer, in the store and the ledger; None where the run has none.

    Raises:
        ConfigError: its file is not there, is another than devices were given or than held-out text is read with.
        DataError: it is no tokenizer, or that of another model.
        StoreFull: there is no room for it.
    """
    key = _key(config)
    known = ledger.artifacts.find(key)
    if known is not None and known in blobs:
        return _ref(known, blobs.size(known))
    path = found_tokenizer(config)
    if path is None:
        return None
    try:
        digest = _digest(path)
    except OSError as error:
        raise ConfigError([f"{path}: the run's tokenizer cannot be read ({error.strerror}); give the file"]) from error
    if known is not None and digest != known:
        raise ConfigError(
            [
                f"{path}: the tokenizer {digest[:12]} is there, devices of this run have {known[:12]}; put the file "
                "back as it was, or begin another run"
            ]
        )
    held_out = _of_held_out(config)
    if held_out is not None and held_out.is_file() and (other := _digest(held_out)) != digest:
        raise ConfigError(
            [
                f"$.evaluation.data: read with {held_out}, {other[:12]}, the model's tokenizer is {path}, "
                f"{digest[:12]}: scores would be of other symbols; name the model's in its data.toml"
            ]
        )
    _check(path, _source(config))
    blobs.put_file(path)
    ledger.blobs.add(digest, path.stat().st_size)
    ledger.artifacts.add(key, digest)
    return _ref(digest, path.stat().st_size)


def _of_held_out(config: RunConfig) -> Path | None:
    folder = Path(config.evaluation.data) if config.evaluation.data else None
    if folder is not None and folder.is_dir() and (name := read_description(folder).tokenizer):
        return folder / name
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, source: LanguageSource) -> None:
    """Where it can be read here: else each device does it."""
    from edge.language.tokenizer import Tokenizer, package

    try:
        package()
    except ConfigError:
        return
    Tokenizer(path).check(source.architecture.vocabulary)


def _key(config: RunConfig) -> str:
    named = {"tokenizer": config.model.build, "seed": config.federation.seed}
    return hashlib.sha256(msgspec.json.encode(named, order="deterministic")).hexdigest()


def _ref(digest: str, size: int) -> BlobRef:
    return BlobRef(digest, size, "raw", size)


def _source(config: RunConfig) -> LanguageSource:
    return source_of_build(config.model.build, config.model.options)
