"""Rows of figures, as people and notebooks read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from edge.contracts.errors import ConfigError

_WIDEST = 28
_MOST_SHOWN = 40


class Rows(Sequence[Mapping[str, Any]]):
    """A list of rows, each a mapping of names to values; shown as a table."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
        self._rows = tuple(dict(row) for row in rows)
        self._columns = tuple(columns)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that are shown: those asked for, or all of them, in the order in which rows bring them."""
        return self._columns or tuple(dict.fromkeys(name for row in self._rows for name in row))

    def column(self, name: str) -> list[Any]:
        """The values called ``name``; None where a row has none.

        Raises:
            KeyError: no row has it.
        """
        if not any(name in row for row in self._rows):
            raise KeyError(f"no row has '{name}'; the names are {', '.join(self.columns)}")
        return [row.get(name) for row in self._rows]

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with every value of every row.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(["to_dataframe: pandas is not installed"], hint="pip install pandas") from error
        return pandas.DataFrame([dict(row) for row in self._rows])

    def __repr__(self) -> str:
        if not self._rows:
            return "no rows"
        names = self.columns
        shown = [names, *(tuple(_text(row.get(name)) for name in names) for row in self._rows[:_MOST_SHOWN])]
        widths = [max(len(cells[i]) for cells in shown) for i in range(len(names))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in shown]
        more = len(self._rows) - _MOST_SHOWN
        return "\n".join(line.rstrip() for line in lines) + (f"\nand {more} more" if more > 0 else "")


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


class Findings(Rows):
    """What :func:`apportion.doctor` looked at, a row each: name, state (``ok``, ``warn``, ``fail``), detail, fix.

    Attributes:
        layers: of a model: how each of its layers fares with each runtime; no rows otherwise.
    """

    def __init__(self, findings: Sequence[Mapping[str, Any]], layers: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(findings, ("state", "name", "detail", "fix"))
        self.layers = Rows(layers)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(row["state"] != "fail" for row in self)
