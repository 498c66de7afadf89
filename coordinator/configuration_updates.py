"""``[updates]`` of a run file: how trained tensors travel to the coordinator."""

from __future__ import annotations

import typing
from typing import Literal, get_args

import msgspec

from coordinator.configuration_reader import TableReader


class UpdatesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[updates]``: how a device sends what it trained.

    Attributes:
        precision: ``fp32``, the trained values; ``fp16`` and ``int8``, their difference to the weights of the order in
            fewer bits, the rounding error kept on the device and added to its next difference.
        encoding: ``raw`` or ``zstd``.
        at_once: uploads that are let in at the same time; others wait for their grant.
    """

    precision: Literal["fp32", "fp16", "int8"] = "fp32"
    encoding: Literal["raw", "zstd"] = "raw"
    at_once: int = 24


def read_updates(table: TableReader) -> UpdatesConfig:
    """The table's values."""
    default, hints = UpdatesConfig(), typing.get_type_hints(UpdatesConfig)
    return UpdatesConfig(
        precision=table.choice("precision", get_args(hints["precision"]), default.precision),
        encoding=table.choice("encoding", get_args(hints["encoding"]), default.encoding),
        at_once=table.integer("at-once", default.at_once, low=1, high=100_000),
    )
