"""The seeds of the masks on one update."""

from __future__ import annotations

import msgspec


class MaskSeeds(msgspec.Struct, frozen=True):
    """Seeds of the masks on one update: its own and those of later devices are added, those of earlier ones taken off.

    Whose is earlier goes by device id, so that each pair's mask is in a sum once with either sign.
    """

    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]
