"""Texts and a tokenizer as windows of symbols: the owner's own, named in ``data.toml``, or the one of a run.

A run whose order brings a tokenizer has its symbols: with another one they would mean other texts. The owner's own is
then used where it is the same file, and passed over otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge.contracts.errors import DataError
from edge.contracts.manifest import ArtifactManifest
from edge.language.documents import SUFFIXES, read_documents
from edge.language.text_windows import TextWindows, text_windows
from edge.training.sources.description import Description

LENGTH = 128
"""Symbols of a window where nothing else is said."""


class RunText(NamedTuple):
    """How an order reads texts.

    Attributes:
        tokenizer: path of the run's.
        length: symbols of its model's windows, where ``data.toml`` says no length.
    """

    tokenizer: Path
    length: int


class Untokenised(DataError):
    """Texts that wait for a run's tokenizer; ``documents`` of them are there."""

    def __init__(self, message: str, documents: int) -> None:
        super().__init__(message)
        self.documents = documents


def run_text(tokenizer: str, manifest: ArtifactManifest) -> RunText | None:
    """How an order for an artifact reads texts; None where it brings no tokenizer."""
    if not tokenizer or manifest.input.layout != "tokens":
        return None
    return RunText(Path(tokenizer), manifest.input.shape[0])


def text_files(files: Sequence[Path]) -> list[Path]:
    """Those of ``files`` that hold documents."""
    return [path for path in files if path.suffix.lower() in SUFFIXES]


def read_language(
    folder: Path, files: Sequence[Path], description: Description, kept: Path | None, run: RunText | None = None
) -> dict[str, np.ndarray]:
    """As :func:`text_windows`: windows, and of each symbol what follows it or -100; the questions, if there are any.

    Raises:
        Untokenised: neither the owner nor a run has named a tokenizer.
        DataError: also as :func:`text_windows`.
    """
    length = description.length or (run.length if run is not None else LENGTH)
    own = folder / description.tokenizer if description.tokenizer else None
    asked = TextWindows(
        files=tuple(str(path) for path in files),
        tokenizer=str(_tokenizer(files, own, run)),
        length=length,
        stride=description.stride or length,
        padded=description.padded,
        end=description.end,
        choices=str(folder / description.choices) if description.choices else "",
    )
    return text_windows(asked, kept)


def _tokenizer(files: Sequence[Path], own: Path | None, run: RunText | None) -> Path:
    if run is None:
        if own is not None:
            return own
        raise Untokenised(
            f"{files[0]}: is read with a tokenizer, and the run brings none; name its file in data.toml: "
            'tokenizer = "..."',
            sum(1 for _ in read_documents(files)),
        )
    if own is not None and own.is_file() and (found := _digest(own)) != (wanted := _digest(run.tokenizer)):
        import logging  # 0.1 MB in an idle trainer

        logging.getLogger("apportion.data").warning(
            "%s: digest %s, the run's tokenizer has %s; the run's is used: symbols of another one mean other texts",
            own,
            found[:12],
            wanted[:12],
        )
    return run.tokenizer


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
