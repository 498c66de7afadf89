"""A tokenizer made here: bytes, a few pairs of them, and the symbol that ends a document."""

from __future__ import annotations

from pathlib import Path

import pytest

END = "<|endoftext|>"


def write_tokenizer(path: Path, *, vocabulary: int = 300, text: str = "the cat sat on the mat and the dog\n") -> Path:
    """A byte-level BPE of at most ``vocabulary`` symbols; 0 ends a document."""
    tokenizers = pytest.importorskip(
        "tokenizers", reason="tokenizers is not installed: pip install 'apportion[language]'"
    )
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    made.save(str(path))
    return path
