"""Texts and a tokenizer as windows of symbols, where ``data.toml`` names a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.language.documents import SUFFIXES
from edge.language.text_windows import TextWindows, text_windows
from edge.training.sources.description import Description

LENGTH = 128
"""Symbols of a window where nothing else is said."""


def text_files(files: Sequence[Path]) -> list[Path]:
    """Those of ``files`` that hold documents."""
    return [path for path in files if path.suffix.lower() in SUFFIXES]


def read_language(
    folder: Path, files: Sequence[Path], description: Description, kept: Path | None
) -> dict[str, np.ndarray]:
    """As :func:`text_windows`: windows, and of each symbol what follows it or -100; the questions, if there are any."""
    length = description.length or LENGTH
    asked = TextWindows(
        files=tuple(str(path) for path in files),
        tokenizer=str(folder / description.tokenizer),
        length=length,
        stride=description.stride or length,
        padded=description.padded,
        end=description.end,
        choices=str(folder / description.choices) if description.choices else "",
    )
    return text_windows(asked, kept)
