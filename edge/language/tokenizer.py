"""A tokenizer by its ``tokenizer.json``, as public models bring one. Reading it needs the package ``tokenizers``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.contracts.errors import ConfigError, DataError

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""What public tokenizers call the end of a document, the first that one knows."""

_PIECE = 16_384
"""Characters that are encoded at once: what the package needs beside the symbols is 150 times the text."""
_SINGLE_SPACE = re.compile(r"\S\s(?=\S)")
_CONTEXT = 256
"""Characters before the end of a piece in which a cut is looked for, and on each side of one that are compared."""
_SPARE = 0.05
"""Share of a model's symbols that its tokenizer may lack: tables are rounded up."""


class Tokenizer:
    """Text to symbols and back.

    Args:
        end: name of the symbol that ends a document; empty: the first of :data:`ENDS` that it has.

    Attributes:
        size: symbols, without those that were added beside the table.
        known: symbols, with those.
        begins: what it puts before a text by its own rule; mostly nothing.
        end: number of the symbol that ends a document; None where it has none.

    Raises:
        ConfigError: the package is not installed.
        DataError: a file that is not there or is no tokenizer, or without the symbol that was named.
    """

    def __init__(self, path: Path, *, end: str = "") -> None:
        self.path = path
        if not path.is_file():
            raise DataError(f"{path}: no such file; give a tokenizer.json, or make one: apportion tokenizer train")
        try:
            self._read: Any = package().Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises Exception itself
            raise DataError(f"{path}: is no readable tokenizer ({error}); copy it again") from error
        self._read.no_truncation()
        self._read.no_padding()
        self.size = int(self._read.get_vocab_size(with_added_tokens=False))
        self.known = int(self._read.get_vocab_size(with_added_tokens=True))
        self.begins = tuple(self._read.encode("", add_special_tokens=True).ids[:1])
        found = [self._read.token_to_id(name) for name in ((end,) if end else ENDS)]
        self.end: int | None = next((number for number in found if number is not None), None)
        if end and self.end is None:
            raise DataError(f"{path}: no symbol '{end}' ends a document there; its own are {', '.join(self._added())}")
        if self.begins and self.begins[0] == self.end:
            self.begins = ()

    def _added(self) -> list[str]:
        return [str(token.content) for token in self._read.get_added_tokens_decoder().values()][:8] or ["none"]

    def encode(self, text: str) -> list[int]:
        """The symbols of ``text``, as of the whole at once; nothing is put before or after it."""
        found: list[int] = []
        start = 0
        while len(text) - start > _PIECE:
            cut = self._cut(text, start)
            if not cut:
                break
            found += self._symbols(text[start:cut])
            start = cut
        return found + self._symbols(text[start:])

    def _cut(self, text: str, start: int) -> int:
        """A place up to a piece after ``start`` where both sides give the symbols of the whole; 0: none was found."""
        end = start + _PIECE
        for space in (match.start() + 1 for match in reversed([*_SINGLE_SPACE.finditer(text, end - _CONTEXT, end)])):
            for cut in (space, space + 1):
                left, right = text[max(start, cut - _CONTEXT) : cut], text[cut : cut + _CONTEXT]
                if self._symbols(left + right) == self._symbols(left) + self._symbols(right):
                    return cut
        return 0

    def _symbols(self, text: str) -> list[int]:
        return list(self._read.encode(text, add_special_tokens=False).ids)

    def decode(self, symbols: Sequence[int]) -> str:
        """The text of ``symbols``; those that say where a text begins or ends are left out."""
        return str(self._read.decode(list(symbols), skip_special_tokens=True))

    def check(self, vocabulary: int) -> None:
        """Check that the tokenizer can be that of a model with so many symbols.

        Raises:
            DataError: it has more, or so few that it is another's.
        """
        check_sizes((self.size, self.known), vocabulary, where=str(self.path))


def check_sizes(sizes: tuple[int, int], vocabulary: int, *, where: str) -> None:
    """Check that a tokenizer of ``sizes`` (``size`` and ``known``) can be that of a model; raises as its ``check``."""
    size, known = sizes
    if size > vocabulary:
        raise DataError(f"{where}: its {size} symbols are more than the model's {vocabulary}; give the model's own")
    if known < vocabulary - max(64, int(_SPARE * vocabulary)):
        raise DataError(f"{where}: has {known} symbols, the model {vocabulary}: it is another's; give the model's own")


def package() -> Any:
    """The module ``tokenizers``.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise ConfigError(
            ["a tokenizer is read with the package tokenizers, which is not here"],
            hint="pip install 'apportion[language]'",
        ) from error
