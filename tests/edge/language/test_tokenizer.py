"""A tokenizer's file: text to symbols and back, long texts in pieces, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge.contracts.errors import DataError
from edge.language.tokenizer import ENDS, Tokenizer
from tests.edge.language.tiny_tokenizer import END, write_tokenizer


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def test_text_comes_back_and_the_end_is_known(path: Path) -> None:
    tokenizer = Tokenizer(path)
    text = "the cat\n\nsät on a mat \N{CAT FACE}"
    symbols = tokenizer.encode(text)
    assert len(symbols) < len(text.encode())
    assert tokenizer.decode([*symbols, tokenizer.end]) == text
    assert tokenizer.end == 0
    assert tokenizer.begins == ()
    assert END in ENDS


def test_a_long_text_has_the_symbols_of_the_whole(path: Path) -> None:
    tokenizer = Tokenizer(path)
    line = "the cat sat\n  on\n\nthe mat, and\tthe dog\nthe  cat \n"
    text = line * 2000
    assert tokenizer.encode(text) == tokenizer._symbols(text)
    solid = "thecat" * 8000  # no line ends
    assert tokenizer.encode(solid) == tokenizer._symbols(solid)


def test_a_tokenizer_of_another_model_is_refused(path: Path) -> None:
    tokenizer = Tokenizer(path)
    tokenizer.check(tokenizer.size)
    tokenizer.check(tokenizer.size + 60)  # a table that was rounded up
    with pytest.raises(DataError, match=f"its {tokenizer.size} symbols are more than the model's 200"):
        tokenizer.check(200)
    with pytest.raises(DataError, match=f"has {tokenizer.size} symbols, the model 50257: it is another's"):
        tokenizer.check(50257)


def test_bad_files_say_what_to_do(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file; give a tokenizer"):
        Tokenizer(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match="is no readable tokenizer"):
        Tokenizer(tmp_path / "bad.json")
    with pytest.raises(DataError, match=re.escape(f"no symbol '<stop>' ends a document there; its own are {END}")):
        Tokenizer(path, end="<stop>")
