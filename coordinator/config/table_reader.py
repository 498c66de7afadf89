"""Reads one TOML table key by key and gathers what is wrong with it, each problem with its path.

Nothing here raises for a bad value: the problem is noted, a stand-in is returned, and reading goes on, so that the user
sees all of them at once.
"""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

REQUIRED: Any = object()
"""Default of a key that must be there."""

T = TypeVar("T")


class TableReader:
    """One table of the file, at ``path`` (``$.cohort``); ``problems`` is shared by all readers of a file."""

    def __init__(self, table: Any, path: str, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        self._asked: set[str] = set()
        if not isinstance(table, Mapping):
            problems.append(f"{path}: a table expected, {_what(table)} found")
            table = {}
        self._table: Mapping[str, Any] = table

    def has(self, key: str) -> bool:
        """Whether the file gives ``key``, which is a known one from then on."""
        self._asked.add(key)
        return key in self._table

    def problem(self, key: str, text: str) -> None:
        """Notes a problem at ``key``."""
        self.problems.append(f"{self.path}.{key}: {text}")

    def text(self, key: str, default: str = REQUIRED) -> str:
        """A string that is not empty, or the default."""
        value: str = self._take(key, str, "a string", default, "")
        if value == "" and self.has(key) and default is REQUIRED:
            self.problem(key, "must not be empty")
        return value

    def choice(self, key: str, known: Iterable[str], default: str = REQUIRED, *, own: str = "") -> Any:
        """One of ``known``, or with ``own``, which says what it is, also ``package.module:function``."""
        value = self._take(key, str, "a string", default, "")
        names = sorted(known)
        is_own = bool(own) and _is_import_path(value)
        if self.has(key) and value not in names and not is_own:
            near = _did_you_mean(value, names)
            extra = f", or your own as package.module:{own}" if own else ""
            self.problem(key, f"'{value}' is not known{near}; known: {', '.join(names)}{extra}")
        return value

    def choices(self, key: str, known: Iterable[str], default: tuple[str, ...]) -> tuple[str, ...]:
        """One of ``known``, or a list of different ones, as a tuple; never empty."""
        if isinstance(self.raw(key), str):
            return (self.choice(key, known),)
        values = self.list_of(key, str, "names", default)
        names = sorted(known)
        for index, value in enumerate(values):
            if value not in names:
                near = _did_you_mean(value, names)
                self.problem(f"{key}[{index}]", f"'{value}' is not known{near}; known: {', '.join(names)}")
            elif value in values[:index]:
                self.problem(f"{key}[{index}]", f"'{value}' is named twice; name it once")
        if not values:
            self.problem(key, f"names none; known: {', '.join(names)}")
        return values or default

    def integer(self, key: str, default: int = REQUIRED, *, low: int, high: int = 2**53) -> int:
        """A whole number in [low, high]."""
        value = self._take(key, int, "a whole number", default, low)
        return value if self._in_range(key, value, low, high) else low

    def number(
        self, key: str, default: float = REQUIRED, *, low: float, high: float = 1e12, above_low: bool = False
    ) -> float:
        """A finite number in [low, high], or (low, high] with ``above_low``."""
        value = float(self._take(key, (int, float), "a number", default, low))
        if above_low and self._table.get(key) == low:
            self.problem(key, f"must be more than {low:g}")
        return value if self._in_range(key, value, low, high) else low

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        return bool(self._take(key, bool, "true or false", default, default))

    def list_of(self, key: str, kind: type[T], what: str, default: Sequence[T]) -> tuple[T, ...]:
        """A list whose entries are all ``kind``; whole numbers pass as floats."""
        values = self._take(key, list, f"a list of {what}", list(default), [])
        wanted: Any = (int, float) if kind is float else kind
        for index, value in enumerate(values):
            if not isinstance(value, wanted) or isinstance(value, bool) or (kind is float and not math.isfinite(value)):
                self.problem(f"{key}[{index}]", f"{what} expected, {_what(value)} found")
                return tuple(default)
        return tuple(kind(value) for value in values)  # type: ignore[call-arg]

    def raw(self, key: str, default: Any = None) -> Any:
        """Whatever the file gives; the caller checks it."""
        self._asked.add(key)
        return self._table.get(key, default)

    def table(self, key: str) -> TableReader:
        """The reader of a sub-table, empty when the file has none."""
        return TableReader(self.raw(key, {}), f"{self.path}.{key}", self.problems)

    def tables(self, key: str) -> list[TableReader]:
        """Readers of an array of tables."""
        found = self.raw(key, [])
        if not isinstance(found, list):
            self.problem(key, f"an array of tables expected ([[{self.path[2:]}.{key}]]), {_what(found)} found")
            return []
        return [TableReader(entry, f"{self.path}.{key}[{i}]", self.problems) for i, entry in enumerate(found)]

    def rest(self) -> dict[str, Any]:
        """Every key that was not asked for, for tables with free options."""
        left = {key: value for key, value in self._table.items() if key not in self._asked}
        self._asked.update(left)
        return left

    def finish(self) -> None:
        """Notes every key that was not asked for, with the nearest one that exists."""
        for key in self._table:
            if key not in self._asked:
                known = sorted(self._asked)
                self.problem(key, f"unknown key{_did_you_mean(key, known)}; known: {', '.join(known)}")

    def _take(self, key: str, kind: Any, what: str, default: Any, stand_in: Any) -> Any:
        self._asked.add(key)
        if key not in self._table:
            if default is REQUIRED:
                self.problem(key, f"is missing; {what} expected")
                return stand_in
            return default
        value = self._table[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.problem(key, f"{what} expected, {_what(value)} found")
            return stand_in if default is REQUIRED else default
        return value

    def _in_range(self, key: str, value: float, low: float, high: float) -> bool:
        if not self.has(key) or low <= value <= high:
            return True
        self.problem(key, f"{value} is outside {low:g} to {high:g}")
        return False


def absolute(path: str, folder: Path) -> str:
    """``path``, relative to ``folder`` when it is not absolute; empty stays empty."""
    return str((folder / Path(path).expanduser()).resolve()) if path else ""


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f", did you mean '{near[0]}'?" if near else ""


def _is_import_path(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _what(value: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", list: "a list"}
    found = names.get(type(value), "a table" if isinstance(value, Mapping) else type(value).__name__)
    text = repr(value)
    return f"{found} ({text if len(text) <= 40 else text[:37] + '...'})"


def choices_of(struct: type, field: str) -> Iterable[str]:
    """The strings that ``field`` may hold, from its type, so that they are written down once."""
    hint: Any = typing.get_type_hints(struct)[field]
    return get_args(hint)
