"""Documents in files: a ``.txt`` file is one, and so is every line of a ``.jsonl`` file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from edge.contracts.errors import DataError

SUFFIXES = frozenset({".txt", ".jsonl"})


class Part(NamedTuple):
    """A text of a document.

    Attributes:
        is_learnt: whether its symbols count in the loss.
    """

    text: str
    is_learnt: bool = True


def read_documents(paths: Sequence[Path]) -> Iterator[tuple[Part, ...]]:
    """The documents of all files, one at a time.

    A line holds ``text``, or ``prompt`` and ``completion``, of which the latter alone is learnt.

    Raises:
        DataError: a file that cannot be read, or a line that holds neither; both are named.
    """
    for path in paths:
        try:
            if path.suffix.lower() == ".jsonl":
                yield from _lines(path)
            else:
                yield (Part(path.read_text(encoding="utf-8")),)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({error}); give text in UTF-8") from error


def _lines(path: Path) -> Iterator[tuple[Part, ...]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}: line {number} is no JSON ({error}); give one object a line") from error
            texts = found if isinstance(found, dict) else {}
            if isinstance(texts.get("text"), str):
                yield (Part(texts["text"]),)
            elif isinstance(texts.get("prompt"), str) and isinstance(texts.get("completion"), str):
                yield Part(texts["prompt"], False), Part(texts["completion"])
            else:
                keys = sorted(map(str, texts)) if texts else type(found).__name__
                raise DataError(
                    f"{path}: line {number} has {keys}; text, or prompt and completion expected, as strings"
                )
