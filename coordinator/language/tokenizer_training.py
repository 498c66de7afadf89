"""A tokenizer made from texts: byte-level pairs (BPE), so that every text has symbols and comes back as it was.

Source: Sennrich et al. 2016, over bytes as Radford et al. 2019; the work is that of the package ``tokenizers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge.contracts.errors import ConfigError, DataError
from edge.language.documents import SUFFIXES, read_documents
from edge.language.tokenizer import ENDS, package
from edge.system.atomic_files import write_whole

LEAST = 257
"""Symbols: every byte, and the one that ends a document."""
MOST = 1_000_000


def train_tokenizer(source: Path, vocabulary: int, out: Path) -> int:
    """Write a ``tokenizer.json`` at ``out`` from the texts of ``source``; how many symbols it has.

    Args:
        vocabulary: the most symbols that it may have.
        source: a ``.txt`` or ``.jsonl`` file, or a folder of them, those of its sub-folders too.

    Raises:
        ConfigError: a number of symbols that cannot be, or the package is not installed.
        DataError: no text there, or a file that cannot be read.
    """
    if not LEAST <= vocabulary <= MOST:
        raise ConfigError([f"--vocabulary: {vocabulary} is outside {LEAST} to {MOST}; every byte has a symbol"])
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    files = [path for path in files if path.suffix.lower() in SUFFIXES]
    if not files:
        raise DataError(f"{source}: no .txt or .jsonl file there; give texts")
    library = package()
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[ENDS[0]],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_texts(files), trainer)
    write_whole(out, made.to_str(pretty=False).encode())
    return int(made.get_vocab_size())


def _texts(files: list[Path]) -> Iterator[str]:
    for parts in read_documents(files):
        for part in parts:
            yield part.text
