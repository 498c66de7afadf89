"""The reference of the run file, from the structs of ``coordinator.config`` and from what reads them.

Descriptions and examples are those of the docstrings, types and defaults those of the fields, bounds and known names
those that the reader of a run file asks for.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec

from coordinator.config.cohort import LocalGroup
from coordinator.config.parameter_groups import ParameterGroupConfig
from coordinator.config.run_config import RunConfig, TlsFiles
from coordinator.config.table_reader import REQUIRED, TableReader
from coordinator.run_file import loading
from edge.contracts.errors import ConfigError
from edge.runtimes import DEFAULT

_SUB_TABLES: dict[str, type] = {
    "cohort.local": LocalGroup,
    "training.groups": ParameterGroupConfig,
    "broker.tls": TlsFiles,
}
"""Tables inside a table that are structs, too."""
OTHERS = "any other key"
"""Stands for the keys of a table that belong to a method or a task."""
_LARGEST = 2**53
_ENTRY = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
_EXAMPLE = re.compile(r"\s*Example: ``(.+?)``\.$")
_IN_FILE = re.compile(r"^``([\w-]+)`` in the file, ")


class Undescribed(Exception):
    """Keys of the run file that have no description or no example; the message names each with its struct."""


@dataclass(frozen=True)
class Key:
    """One key of a table of the run file, as the reference shows it; ``default`` and ``example`` in TOML."""

    name: str
    type: str
    default: str
    description: str
    example: str
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table: ``name`` as in the file (``cohort.local``), whether it is an array of tables, and its keys."""

    name: str
    is_array: bool
    summary: str
    keys: tuple[Key, ...]


@dataclass
class _Asked:
    """What the reader asked of one key."""

    bounds: tuple[float, float, bool] | None = None
    known: tuple[str, ...] = ()
    is_required: bool = False


class _Recorder(TableReader):
    """A reader that notes each key it is asked for, by table."""

    asked: typing.ClassVar[dict[str, dict[str, _Asked]]] = {}

    def _note(self, key: str) -> _Asked:
        table = re.sub(r"\[\d+\]", "", self.path.removeprefix("$").removeprefix("."))
        return self.asked.setdefault(table, {}).setdefault(key, _Asked())

    def text(self, key: str, default: str = REQUIRED) -> str:
        self._note(key).is_required = default is REQUIRED
        return super().text(key, default)

    def choice(self, key: str, known: Iterable[str], default: str = REQUIRED, *, own: str = "") -> Any:
        names, asked = tuple(sorted(known)), self._note(key)
        asked.known, asked.is_required = names, default is REQUIRED
        return super().choice(key, names, default, own=own)

    def choices(self, key: str, known: Iterable[str], default: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(sorted(known))
        self._note(key).known = names
        return super().choices(key, names, default)

    def integer(self, key: str, default: int = REQUIRED, *, low: int, high: int = _LARGEST) -> int:
        asked = self._note(key)
        asked.bounds, asked.is_required = (low, high, False), default is REQUIRED
        return super().integer(key, default, low=low, high=high)

    def number(
        self, key: str, default: float = REQUIRED, *, low: float, high: float = 1e12, above_low: bool = False
    ) -> float:
        asked = self._note(key)
        asked.bounds, asked.is_required = (low, high, above_low), default is REQUIRED
        return super().number(key, default, low=low, high=high, above_low=above_low)

    def flag(self, key: str, default: bool) -> bool:
        self._note(key)
        return super().flag(key, default)

    def list_of(self, key: str, kind: type, what: str, default: Any) -> tuple[Any, ...]:
        self._note(key)
        return super().list_of(key, kind, what, default)

    def raw(self, key: str, default: Any = None) -> Any:
        if self.path != "$":
            self._note(key)
        return super().raw(key, default)

    def rest(self) -> dict[str, Any]:
        if self.path in ("$.method", "$.task"):
            self._note(OTHERS)
        return super().rest()

    def table(self, key: str) -> TableReader:
        inner = super().table(key)
        return _Recorder(inner._table, inner.path, self.problems)

    def tables(self, key: str) -> list[TableReader]:
        return [_Recorder(entry._table, entry.path, self.problems) for entry in super().tables(key)]


_PROBE = """
[cohort]
local = [{ count = 1 }]
[training]
groups = [{ match = "a" }]
[broker]
tls = { ca = "a" }
[evaluation]
data = ""
"""
"""A run file that makes the reader look into every table, whatever it then says of it."""


def keys_read() -> dict[str, dict[str, _Asked]]:
    """Table -> key -> what the reader of a run file asks of it: every key that a file may have."""
    _Recorder.asked = {}
    with mock.patch.object(loading, "TableReader", _Recorder):
        with contextlib.suppress(ConfigError):  # it lacks nearly everything
            loading.load_config_text(_PROBE, environ={})
    return _Recorder.asked


def tables() -> list[Table]:
    """Every table of the run file, in the order of the structs.

    Raises:
        Undescribed: some key has no description or no example.
    """
    problems: list[str] = []
    read = keys_read()
    found = [_table(name, struct, read.get(name, {}), problems) for name, struct in _structs()]
    free = {f"{table.name}.{key.name}" for table in found for key in table.keys if key.type.endswith("table")}
    if missing := sorted(set(read) - {table.name for table in found} - free):
        problems.append(f"the reader asks for tables that no struct describes: {', '.join(missing)}")
    if problems:
        raise Undescribed("\n".join(problems))
    return found


def _structs() -> Iterator[tuple[str, type]]:
    for name, struct in typing.get_type_hints(RunConfig).items():
        yield _kebab(name), struct
        for table, inner in _SUB_TABLES.items():
            if table.partition(".")[0] == name:
                yield table, inner


def _table(name: str, struct: type, read: dict[str, _Asked], problems: list[str]) -> Table:
    summary, told = described(struct)
    where = f"{struct.__module__}.{struct.__qualname__}"
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    keys = []
    for attribute, text in told.items():
        description, example = _example(text)
        if in_file := _IN_FILE.match(description):
            description = description[in_file.end() :]
        key = in_file[1] if in_file else _kebab(attribute)
        if attribute == "options" and OTHERS in read:
            key = OTHERS
        if not description or not example:
            problems.append(f"{where}: '{attribute}' has no {'example' if description else 'description'}")
        asked, field = read.get(key, _Asked()), fields.get(attribute)
        hint: Any = typing.get_type_hints(struct).get(attribute)
        keys.append(
            Key(
                name=key,
                type=_shown_type(hint, asked) if field else _type_of_example(example, asked),
                default=_default(field, asked) if field else "",
                description=description,
                example=example,
                known=asked.known,
            )
        )
        if example and field:
            _check_example(where, attribute, example, hint, problems)
    for attribute in fields.keys() - told.keys():
        problems.append(f"{where}: '{attribute}' has no description; name it under Attributes, with an Example")
    for key in read.keys() - {key.name for key in keys}:
        problems.append(f"{where}: the reader of a run file asks for '{key}', which its docstring does not name")
    return Table(name, typing.get_origin(_hint_of(name)) is tuple, summary, tuple(keys))


def _hint_of(name: str) -> Any:
    outer, _, inner = name.partition(".")
    if not inner:
        return None
    return typing.get_type_hints(typing.get_type_hints(RunConfig)[outer.replace("-", "_")])[inner]


def described(struct: type) -> tuple[str, dict[str, str]]:
    """The summary of a struct's docstring, and attribute -> what is said of it, each on one line."""
    summary, _, attributes = (inspect.getdoc(struct) or "").partition("\nAttributes:\n")
    parts = _ENTRY.split(attributes.rstrip())[1:]
    return summary.strip(), {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _example(text: str) -> tuple[str, str]:
    """Description and example; no source outside of the runtimes names one, so DEFAULT stands for the usual."""
    match = _EXAMPLE.search(text)
    return (text[: match.start()], match[1].replace("DEFAULT", toml(DEFAULT))) if match else (text, "")


def _check_example(where: str, attribute: str, example: str, hint: Any, problems: list[str]) -> None:
    try:
        value = tomllib.loads(f"value = {example}")["value"]
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{where}: the example of '{attribute}', {example}, is no TOML: {error}")
        return
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        value = [{key.replace("-", "_"): entry for key, entry in table.items()} for table in value]
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        problems.append(f"{where}: the example of '{attribute}', {example}, does not fit: {error}")


def _default(field: msgspec.structs.FieldInfo, asked: _Asked) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if asked.is_required:
        return "required"
    if value is msgspec.NODEFAULT or value is None or value in ("", (), {}):
        return ""
    if asked.bounds and not asked.bounds[0] <= value <= asked.bounds[1]:
        return ""  # stands for "not given"; nobody may write it
    return toml(value)


def toml(value: Any) -> str:
    """``value`` as it stands in a run file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(toml(entry) for entry in value)}]"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and 0.01 <= abs(value) < 1 and len(repr(value)) > 8:
        return f"{value:.4g}"
    return repr(value)


_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_MOST_NAMES = 10
"""More names than these are listed below a key, not in its type."""


def _shown_type(hint: Any, asked: _Asked) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is str and 0 < len(asked.known) <= _MOST_NAMES:
        return _one_of(asked.known)
    if hint in _NAMES:
        return _NAMES[hint] + (f", {bounds}" if (bounds := _bounds(asked)) else "")
    if origin is typing.Literal:
        return _one_of(inner)
    if origin is tuple:
        if isinstance(inner[0], type) and issubclass(inner[0], msgspec.Struct):
            return "array of tables"
        known = f" of {_listed(asked.known)}" if asked.known else ""
        return f"list of {_NAMES[inner[0]]}s{known}"
    if origin is dict or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return "table"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_shown_type(part, asked) for part in inner if part is not type(None))
    raise TypeError(f"the type {hint} of a run file's key has no name in the reference; add it here")


def _type_of_example(example: str, asked: _Asked) -> str:
    value = tomllib.loads(f"value = {example}")["value"] if example else ""
    return _shown_type(type(value) if not isinstance(value, dict) else dict[str, str], asked)


def _one_of(names: Sequence[Any]) -> str:
    return f"`{names[0]}`" if len(names) == 1 else f"one of {_listed(names)}"


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _bounds(asked: _Asked) -> str:
    if asked.bounds is None:
        return ""
    low, high, above_low = asked.bounds
    is_open = high >= 1e12
    if is_open and low <= -1e12:
        return ""
    start = f"above {low:,.12g}" if above_low else f"{low:,.12g}" + (" or more" if is_open else "")
    return start if is_open else f"{start} to {high:,.12g}"


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def markdown() -> str:
    """The reference as a page's text: one section for each table, one row for each key."""
    lines: list[str] = []
    for table in tables():
        shown = f"[[{table.name}]]" if table.is_array else f"[{table.name}]"
        summary = re.sub(r"^``\[+[^`]*``[:.]?\s*", "", table.summary)
        lines += [f"({_anchor('table', table.name)})=", "", f"## `{shown}`", "", _prose(summary), ""]
        for key in table.keys:
            lines += _section(table, key)
    return "\n".join(lines)


def _section(table: Table, key: Key) -> list[str]:
    default = f"default `{key.default}`" if key.default not in ("", "required") else key.default
    title = key.name if key.name == OTHERS else f"`{key.name}`"
    given = [f"{key.name} = {key.example}"]
    if key.name == OTHERS:
        given = [f"{name} = {toml(value)}" for name, value in tomllib.loads(f"value = {key.example}")["value"].items()]
    return [
        f"({_anchor('key', table.name, key.name)})=",
        "",
        f"### {title}",
        "",
        f"*{' · '.join(part for part in (key.type, default) if part)}*",
        "",
        _prose(key.description),
        "",
        *([f"Known names: {_listed(key.known)}.", ""] if len(key.known) > _MOST_NAMES else []),
        f"Example: `{'`, `'.join(given)}`",
        "",
    ]


def _anchor(*parts: str) -> str:
    return "-".join(part.replace(".", "-").replace(" ", "-") for part in parts)


def _prose(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")
