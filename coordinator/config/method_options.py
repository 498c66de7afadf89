"""Reads a ``[method]`` table, or another of a method's own: all its problems reported at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge.contracts.errors import ConfigError

LABEL_MASKED = "label_masked_cross_entropy"
LOSSES = ("cross_entropy", LABEL_MASKED, "bce_one_hot")
NORMS = ("running", "batch")


class Options:
    """Reads one table; every reader gives the default for a bad value and notes the problem for :meth:`finish`."""

    def __init__(self, method: str, table: Mapping[str, Any]) -> None:
        self._method = method
        self._table = {str(key).replace("_", "-"): value for key, value in table.items()}
        self._read: list[str] = []
        self._problems: list[str] = []

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        """One of ``allowed``."""
        valid = lambda value: isinstance(value, str) and value in allowed  # noqa: E731
        return str(self._value(key, default, valid, f"one of {', '.join(allowed)}"))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._value(key, default, lambda value: isinstance(value, bool), "true or false"))

    def number(self, key: str, default: float | None, *, low: float, strict: bool = False) -> float | None:
        """A number from ``low`` up (above it when ``strict``); infinity is written ``inf``."""

        def valid(value: object) -> bool:
            return is_number(value) and (float(value) > low if strict else float(value) >= low)  # type: ignore[arg-type]

        value = self._value(key, default, valid, f"a number {'above' if strict else 'from'} {low:g}")
        return None if value is None else float(value)

    def numbers(self, key: str, default: Sequence[float], *, low: float) -> tuple[float, ...]:
        """One or more different numbers from ``low`` up; a single one may stand without a list."""

        def valid(value: object) -> bool:
            values: Any = value if isinstance(value, list | tuple) else [value]
            return (
                len(values) > 0
                and all(is_number(v) and math.isfinite(v) and v >= low for v in values)
                and len(set(values)) == len(values)
            )

        found = self._value(key, default, valid, f"one or more different numbers from {low:g}")
        return tuple(float(v) for v in (found if isinstance(found, list | tuple) else [found]))

    def ratios(self, key: str, default: Sequence[float]) -> tuple[float, ...]:
        """One or more different numbers above 0 and up to 1."""

        def valid(value: object) -> bool:
            return (
                isinstance(value, list | tuple)
                and len(value) > 0
                and all(is_number(v) and 0 < v <= 1 for v in value)
                and len(set(value)) == len(value)
            )

        found = self._value(key, default, valid, "one or more different ratios above 0 up to 1")
        return tuple(float(v) for v in found)

    def integer(self, key: str, default: int, *, low: int) -> int:
        """A whole number from ``low`` up."""

        def valid(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and value >= low

        return int(self._value(key, default, valid, f"a whole number from {low}"))

    def sequence(self, key: str, *, low: float = 0.0) -> tuple[float, ...] | None:
        """Numbers from ``low`` up, equal ones allowed, or None when the key is absent."""

        def valid(value: object) -> bool:
            return isinstance(value, list | tuple) and all(is_number(v) and v >= low for v in value)

        found = self._value(key, None, valid, f"a list of numbers from {low:g}")
        return None if found is None else tuple(float(v) for v in found)

    def names(self, key: str) -> tuple[str, ...] | None:
        """One or more strings (one may stand without its list), or None when the key is absent."""

        def valid(value: object) -> bool:
            many = [value] if isinstance(value, str) else value
            return isinstance(many, list | tuple) and len(many) > 0 and all(isinstance(v, str) and v for v in many)

        found = self._value(key, None, valid, "one or more name patterns")
        if found is None:
            return None
        return (found,) if isinstance(found, str) else tuple(found)

    def text(self, key: str, default: str = "") -> str:
        """A string that is not empty, or the default."""
        return str(self._value(key, default, lambda value: isinstance(value, str) and value != "", "some text"))

    def text_or_numbers(self, key: str) -> str | dict[str, float] | None:
        """Some text, a table of numbers from 0 up by name, or None when the key is absent."""

        def valid(value: object) -> bool:
            if isinstance(value, Mapping):
                return all(is_number(v) and math.isfinite(v) and v >= 0 for v in value.values())
            return isinstance(value, str) and value != ""

        found = self._value(key, None, valid, "some text, or a table of numbers from 0 by name")
        return {str(k): float(v) for k, v in found.items()} if isinstance(found, Mapping) else found

    def problem(self, key: str, text: str) -> None:
        """Note what is wrong with an option beside others, for :meth:`finish`."""
        self._problems.append(f"$.method.{key}: {text}")

    def finish(self) -> None:
        """Check that every option was known and possible.

        Raises:
            ConfigError: one problem per line, each with its path and value.
        """
        for key in self._table:
            if key not in self._read:
                known = ", ".join(self._read)
                self._problems.append(f"$.method.{key}: {self._method} has no such option; it takes {known}")
        if self._problems:
            raise ConfigError(self._problems)

    def _value(self, key: str, default: Any, valid: Callable[[Any], bool], expected: str) -> Any:
        if key not in self._read:
            self._read.append(key)
        if key not in self._table:
            return default
        value = self._table[key]
        if valid(value):
            return value
        problem = f"$.method.{key}: {value!r} given, {expected} expected"
        if problem not in self._problems:
            self._problems.append(problem)
        return default


def is_number(value: object) -> bool:
    """Whether ``value`` is an int or float other than NaN and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
