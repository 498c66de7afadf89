"""``[personal]`` of a run file: what each device trains and keeps for itself."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from coordinator.config.table_reader import TableReader


class PersonalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[personal]``.

    Attributes:
        layers: name patterns of the tensors that never leave a device; empty = none. Example: ``["head.*"]``.
        fine_tune: steps by which each device trains the final model on its own examples; it keeps the result where that
            lowers the loss on its held-out share. Not given, 0: none. Example: ``20``.
    """

    layers: tuple[str, ...] = ()
    fine_tune: int = 0

    def of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that are personal, in their order."""
        return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in self.layers))


def read_personal(table: TableReader) -> PersonalConfig:
    """The table's values."""
    layers = table.list_of("layers", str, "name patterns", ())
    if table.has("layers") and not all(layers or ("",)):
        table.problem("layers", "name one pattern or more, such as head.*; leave the table out for none")
    return PersonalConfig(layers=layers, fine_tune=table.integer("fine-tune", 0, low=1, high=1_000_000))
