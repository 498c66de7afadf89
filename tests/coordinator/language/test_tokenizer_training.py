"""A tokenizer made from texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.language.tokenizer_training import train_tokenizer
from edge.contracts.errors import ConfigError, DataError
from edge.language.tokenizer import Tokenizer


def test_a_tokenizer_has_the_symbols_asked_for_and_gives_back_every_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'apportion[language]'")
    (tmp_path / "texts" / "more").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("the cat sat on the mat, the cat and the dog\n" * 5)
    (tmp_path / "texts" / "more" / "b.jsonl").write_text('{"prompt": "what sat? ", "completion": "the cat"}\n')
    out = tmp_path / "tokenizer.json"
    assert train_tokenizer(tmp_path / "texts", 270, out) == 270
    tokenizer = Tokenizer(out)
    assert (tokenizer.size, tokenizer.end) == (270, 0)
    assert len(tokenizer.encode(" the cat")) < 6
    assert tokenizer.decode(tokenizer.encode("\x00ünknown \n")) == "\x00ünknown \n"
    with pytest.raises(DataError, match=r"no \.txt or \.jsonl file there"):
        train_tokenizer(tmp_path / "none", 270, out)
    with pytest.raises(ConfigError, match="--vocabulary: 100 is outside 257"):
        train_tokenizer(tmp_path / "texts", 100, out)
