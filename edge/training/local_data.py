"""Examples in files: read from where their owner said, checked, and counted. On a device nothing here leaves it.

Devices read what they train on with this, a coordinator what it evaluates on. Sources:

- a folder of ``.npz`` files (keys ``x`` and ``y``, and others that a task names), or one such file;
- a folder of tables (``.csv``, ``.parquet``) with the same columns, or one of them;
- a folder with one sub-folder per class, of images, of sound (``.wav``) or of texts (``.txt``);
- a folder of ``.txt`` files: the byte that follows is the label;
- a folder of ``.txt`` and ``.jsonl`` files whose ``data.toml`` names a tokenizer, or whose order brings one: windows of
  its symbols, and of each the symbol that follows;
- a folder with sub-folders ``images`` and ``masks``, whose files have the same names: a class for each pixel;
- ``package.module:function`` that gives ``(x, y)``, or a mapping of named arrays.

``data.toml`` in the folder says what tables, sound and text are read as. Fitting them to an artifact (layout,
normalisation, batches) is :mod:`edge.training.batches`' work.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.contracts.errors import DataError
from edge.language.questions import ChoiceWindows
from edge.language.text_windows import SIZES, taken_choices
from edge.training.records import beside_x
from edge.training.sources import images, language, sound, tables, text
from edge.training.sources.archives import read_archives
from edge.training.sources.description import Description, read_description

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KINDS = {"images": images.SUFFIXES, "sound": sound.SUFFIXES, "text": text.SUFFIXES}
_EXPECTED = "a folder of .npz, .csv, .parquet or .txt files, or of a sub-folder of images, .wav or .txt files per class"


@dataclass(frozen=True)
class LocalData:
    """Examples as they were found.

    Attributes:
        where: source, for messages.
        x: raw values [N, ...] in their own dtype, or the image files themselves.
        y: labels [N, ...], integers or class names; records where there are other arrays beside ``x``, or no labels
            (:mod:`edge.training.records`).
        symbols: of a text's tokenizer, without and with those that were added; None of other data.
        choices: questions beside a text; None: there are none.
    """

    where: str
    x: np.ndarray | tuple[Path, ...]
    y: np.ndarray
    symbols: tuple[int, int] | None = None
    choices: ChoiceWindows | None = None

    def __len__(self) -> int:
        return len(self.y)


def read_local_data(source: str, kept: Path | None = None, run: language.RunText | None = None) -> LocalData:
    """The examples of ``source``.

    Args:
        kept: folder for what takes long to read, the symbols of texts; they are mapped from there then.
        run: how an order reads texts; None: it says nothing of them, or there is none yet.

    Raises:
        DataError: nothing there, a file that cannot be read (it is named), or lengths that differ. As Untokenised,
            texts that wait for a run's tokenizer.
        ConfigError: images without Pillow installed, Parquet without pyarrow.
    """
    path = Path(source)
    if not path.exists() and _FUNCTION.fullmatch(source):
        data = _from_function(source)
    elif path.is_dir():
        data = _from_folder(path, kept, run)
    elif path.suffix == ".npz" and path.is_file():
        data = _named(str(path), read_archives([path]))
    elif path.suffix in tables.SUFFIXES and path.is_file():
        data = _named(str(path), tables.read_tables([path], read_description(path.parent)))
    else:
        raise DataError(
            f"no local data at {source}: {_EXPECTED}, a .csv, a .npz or package.module:function expected; set --data"
        )
    if len(data.x) != len(data.y) or len(data) == 0:
        raise DataError(f"{data.where}: {len(data.x)} examples with {len(data.y)} labels; give as many, at least one")
    return data


def _from_folder(folder: Path, kept: Path | None, run: language.RunText | None) -> LocalData:
    description = read_description(folder)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    if description.tokenizer or _is_for_a_tokenizer(files, description, run):
        questions = (folder / description.choices).resolve() if description.choices else None
        if not (found := [path for path in language.text_files(files) if path.resolve() != questions]):
            raise DataError(f"{folder}: data.toml names a tokenizer, and no .txt or .jsonl file is there; fill it")
        arrays = language.read_language(folder, found, description, kept, run)
        size, known = arrays.pop(SIZES).tolist()
        choices = taken_choices(arrays, str(folder / description.choices))
        return replace(_named(str(folder), arrays), symbols=(size, known), choices=choices)
    if archives := [path for path in files if path.suffix == ".npz"]:
        return _named(str(folder), read_archives(archives))
    if found := [path for path in files if path.suffix.lower() in tables.SUFFIXES]:
        return _named(str(folder), tables.read_tables(found, description))
    if texts := [path for path in files if path.suffix.lower() in text.SUFFIXES]:
        length = description.length or text.LENGTH
        return _named(str(folder), text.read_next_bytes(texts, length, description.stride or length))
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if {path.name for path in classes} == {images.IMAGES, images.MASKS}:
        paths, masks = images.read_masks(folder)
        return LocalData(str(folder), tuple(paths), masks)
    if not classes:
        raise DataError(f"{folder}: neither .npz, .csv, .parquet or .txt files nor a folder per class; fill it")
    return _from_classes(folder, classes, description)


def _is_for_a_tokenizer(files: Sequence[Path], description: Description, run: language.RunText | None) -> bool:
    """Whether a folder whose owner names no tokenizer holds texts that one is for."""
    if any(path.suffix.lower() == ".jsonl" for path in files):
        return True
    if description.padded or description.end or description.choices:
        return True
    others = any(path.suffix == ".npz" or path.suffix.lower() in tables.SUFFIXES for path in files)
    return run is not None and bool(language.text_files(files)) and not others


def _from_classes(folder: Path, classes: Sequence[Path], description: Description) -> LocalData:
    """One sub-folder per class, its name the label."""
    found = {kind: [(c, p) for c in classes for p in _files(c, suffixes)] for kind, suffixes in _KINDS.items()}
    kinds = [kind for kind, files in found.items() if files]
    if len(kinds) > 1:
        shown = ", ".join(f"{len(found[kind])} of {kind} ({found[kind][0][1]})" for kind in kinds)
        raise DataError(f"{folder}: files of several kinds: {shown}; give one kind in a folder")
    if not kinds:
        raise DataError(
            f"{folder}: its folders {[c.name for c in classes][:5]} hold no images, .wav or .txt; fill them"
        )
    paths = [path for _, path in found[kinds[0]]]
    labels = np.asarray([class_folder.name for class_folder, _ in found[kinds[0]]])
    if kinds == ["sound"]:
        return LocalData(str(folder), sound.read_sounds(paths, description.length or sound.LENGTH), labels)
    if kinds == ["text"]:
        return LocalData(str(folder), text.read_texts(paths, description.length or text.LENGTH), labels)
    images.check_images(paths)
    return LocalData(str(folder), tuple(paths), labels)


def _files(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)


def _named(where: str, arrays: Mapping[str, np.ndarray]) -> LocalData:
    return LocalData(where, arrays["x"], beside_x(arrays, len(arrays["x"])))


def _from_function(source: str) -> LocalData:
    module_name, _, name = source.partition(":")
    try:
        function: Callable[[], Any] = getattr(importlib.import_module(module_name), name)
        found = function()
        named = found if isinstance(found, Mapping) else dict(zip(("x", "y"), found, strict=True))
        arrays = {str(name): np.asarray(value) for name, value in named.items()}
        x = arrays["x"]
    except Exception as error:  # the user's own code
        raise DataError(
            f"{source}: failed with {type(error).__name__}: {error}; it is called without arguments "
            "and must give (x, y), or a mapping with x"
        ) from error
    uneven = {name: len(value) if value.ndim else 0 for name, value in arrays.items()}
    if len(set(uneven.values())) > 1:
        raise DataError(f"{source}: arrays of {uneven} examples; give as many of each")
    return _named(source, {"x": x, **arrays})
