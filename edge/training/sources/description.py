"""``data.toml`` beside the examples: how their owner wants tables, sound and text read. No file: the defaults."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from edge.contracts.errors import DataError

NAME = "data.toml"


class Description(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """How a folder is read.

    Attributes:
        label: column of a table that holds the labels; empty: ``label``, or the last one where no column is called so.
        labels: columns of a table that together are what an example is held against: [numbers] in this order, for
            regression and several classes at once; in place of ``label``.
        unlabelled: every column of a table is a measurement, for tasks without labels.
        columns: of a table, in this order; empty: all but the label's.
        window: rows of a table that make one example [columns, window]; 0: each row is one [columns].
        stride: rows, or bytes or symbols of a text without classes, from the beginning of an example to that of the
            next; 0: as many as an example has.
        length: samples of a sound, bytes or symbols of a text in one example; 0: 16000 samples, 256 bytes, 128 symbols.
        tokenizer: path of a ``tokenizer.json``, from this folder: texts are read as its symbols; empty: as those of the
            run's tokenizer where an order brings one, else as bytes.
        padded: each document has examples of its own, filled up at the end; else one follows the other.
        end: name of the symbol that ends a document; empty: what public tokenizers call it.
        choices: path of a ``.jsonl`` file of questions, from this folder, that a model is scored on and never trained.
    """

    label: str = ""
    labels: tuple[str, ...] = ()
    unlabelled: bool = False
    columns: tuple[str, ...] = ()
    window: int = 0
    stride: int = 0
    length: int = 0
    tokenizer: str = ""
    padded: bool = False
    end: str = ""
    choices: str = ""


def read_description(folder: Path) -> Description:
    """What ``data.toml`` in ``folder`` says.

    Raises:
        DataError: it is not TOML, has a key that is not known, or a number below 0.
    """
    path = folder / NAME
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Description)
    except FileNotFoundError:
        return Description()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        known = ", ".join(Description.__struct_encode_fields__)
        raise DataError(f"{path}: cannot be read ({error}); its keys are {known}") from error
    if sum((bool(found.label), bool(found.labels), found.unlabelled)) > 1:
        raise DataError(f"{path}: label, labels and unlabelled exclude each other; give one of them")
    for key in ("window", "stride", "length"):
        if getattr(found, key) < 0:
            raise DataError(f"{path}: {key} = {getattr(found, key)}; a whole number from 0 expected")
    return found
