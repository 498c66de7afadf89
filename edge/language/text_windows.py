"""Files of text as windows of symbols, kept as arrays so that a text is tokenised once.

On a device that is done by a child, ``python -m edge.language.text_windows``, which ends before the step begins: what a
tokenizer needs is then given back, and the trainer maps the arrays. Measured, 0.8 MB of text, 50,000 symbols: the
child 82 MB at its peak, the reader 34 MB; 176 MB in one process that tokenises each text whole.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from edge.contracts.errors import ApportionError, DataError
from edge.language.documents import read_documents
from edge.language.questions import ChoiceWindows, choice_windows
from edge.language.tokenizer import Tokenizer
from edge.language.windows import Symbols, windows

SIZES = "sizes"
"""Symbols of the tokenizer, without and with those that were added, int64 [2]."""

_NAMES = ("x", "y", SIZES)
_CHOICES = ("choice_x", "choice_y", "choice_question", "choice_right")
"""Arrays of questions, where there are any, as :class:`ChoiceWindows` holds them."""
_VERSION = 1
"""Of the arrays; in their key."""


class TextWindows(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and how.

    Attributes:
        files: paths of ``.txt`` and ``.jsonl`` files, in their order.
        tokenizer: path of its ``tokenizer.json``.
        length, stride: of windows, in symbols.
        padded: each document has windows of its own.
        end: see :class:`Tokenizer`.
        choices: path of a file of questions, empty for none.
    """

    files: tuple[str, ...]
    tokenizer: str
    length: int
    stride: int
    padded: bool = False
    end: str = ""
    choices: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the arrays."""
        return (*_NAMES, *(_CHOICES if self.choices else ()))


class _Failure(msgspec.Struct, frozen=True):
    message: str


def text_windows(asked: TextWindows, kept: Path | None = None) -> dict[str, np.ndarray]:
    """``x`` and ``y`` [N, length] int32, see :func:`windows`, :data:`SIZES`, and the arrays of questions.

    Args:
        kept: folder for the arrays, which are mapped then; those of other texts in it are removed. None: nothing is
            kept, and the text is tokenised in this process.

    Raises:
        DataError: a file that cannot be read, a tokenizer without an end, or no text at all.
        ConfigError: the package ``tokenizers`` is not installed.
    """
    if kept is None:
        return _tokenised(asked)
    key = _key(asked)
    paths = {name: kept / f"{key}-{name}.npy" for name in asked.names}
    if not all(path.is_file() for path in paths.values()):
        kept.mkdir(parents=True, exist_ok=True)
        for old in kept.glob("*.npy*"):
            old.unlink()
        _have_written(asked, paths)
    try:
        return {name: np.load(path, mmap_mode="r", allow_pickle=False) for name, path in paths.items()}
    except (OSError, ValueError) as error:
        for path in paths.values():
            path.unlink(missing_ok=True)
        raise DataError(f"{kept}: symbols kept there are damaged ({error}); they are made again next time") from error


def _tokenised(asked: TextWindows) -> dict[str, np.ndarray]:
    tokenizer = Tokenizer(Path(asked.tokenizer), end=asked.end)
    if tokenizer.end is None:
        raise DataError(
            f'{asked.tokenizer}: no symbol that ends a document is known of it; name it in data.toml: end = "..."'
        )
    x, y = windows(
        _symbols(asked, tokenizer, tokenizer.end),
        length=asked.length,
        stride=asked.stride,
        fill=tokenizer.end,
        is_padded=asked.padded,
    )
    if not len(x):
        raise DataError(f"{asked.files[0]} and {len(asked.files) - 1} more: no text that counts is in them; fill them")
    found = {"x": x, "y": y, SIZES: np.array([tokenizer.size, tokenizer.known])}
    if asked.choices:
        asked_of = choice_windows(Path(asked.choices), tokenizer, asked.length)
        arrays = (asked_of.x, asked_of.y, asked_of.question, asked_of.is_right)
        found |= dict(zip(_CHOICES, arrays, strict=True))
    return found


def taken_choices(arrays: dict[str, np.ndarray], where: str) -> ChoiceWindows | None:
    """The questions among ``arrays``, which are taken out of them; None where there are none."""
    if _CHOICES[0] not in arrays:
        return None
    return ChoiceWindows(where, *(arrays.pop(name) for name in _CHOICES))


def _symbols(asked: TextWindows, tokenizer: Tokenizer, end: int) -> Iterator[Symbols]:
    for parts in read_documents([Path(path) for path in asked.files]):
        ids, learnt = list(tokenizer.begins), [False] * len(tokenizer.begins)
        for part in parts:
            found = tokenizer.encode(part.text)
            ids += found
            learnt += [part.is_learnt] * len(found)
        if len(ids) > len(tokenizer.begins):
            yield np.asarray([*ids, end], np.int32), np.asarray([*learnt, True], np.bool_)


def _key(asked: TextWindows) -> str:
    """Of the bytes of all files and of how they are read."""
    found = hashlib.sha256(
        repr((_VERSION, asked.length, asked.stride, asked.padded, asked.end, bool(asked.choices))).encode()
    )
    for path in (asked.tokenizer, *asked.files, *filter(None, [asked.choices])):
        try:
            with open(path, "rb") as file:
                found.update(Path(path).suffix.encode() + hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error}); give the file") from error
    return found.hexdigest()[:32]


def _have_written(asked: TextWindows, paths: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "edge.language.text_windows", *(str(path) for path in paths.values())]
    try:
        done = subprocess.run(command, input=msgspec.json.encode(asked), stdout=subprocess.PIPE, check=False)
    except OSError:  # no further process may start here
        _write(_tokenised(asked), paths)
        return
    if done.returncode < 0:
        raise DataError(
            f"{asked.files[0]}: tokenising was ended by signal {-done.returncode}, as when memory is short; give less "
            "text, or a smaller tokenizer"
        )
    if done.returncode:
        message = f"tokenising ended with status {done.returncode}"
        if done.stdout:
            message = msgspec.json.decode(done.stdout, type=_Failure).message
        raise DataError(message)


def _write(arrays: dict[str, np.ndarray], paths: dict[str, Path]) -> None:
    for name, path in paths.items():
        staged = path.with_name(path.name + ".tmp")
        with staged.open("wb") as file:
            np.save(file, arrays[name], allow_pickle=False)
        os.replace(staged, path)


def main(arguments: list[str]) -> int:
    """The child: what is asked for on stdin, the paths of its arrays as arguments; what failed goes to stdout."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=TextWindows)
    try:
        _write(_tokenised(asked), {name: Path(path) for name, path in zip(asked.names, arguments, strict=True)})
    except (ApportionError, OSError) as error:
        hint = f"; {error.hint}" if isinstance(error, ApportionError) and error.hint else ""
        sys.stdout.buffer.write(msgspec.json.encode(_Failure(f"{error}{hint}")))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
