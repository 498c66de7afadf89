"""``[aggregation]``, ``[updates]``, ``[defences]`` of a run file: how updates travel, when and how they are summed."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from coordinator.config.table_reader import TableReader

BUFFERED_KEYS = ("buffer", "staleness-exponent", "max-staleness", "server-lr")
"""Keys that only ``mode = "buffered"`` has."""


class AggregationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[aggregation]``: when updates become a new model, and by which rule.

    Attributes:
        mode: ``synchronous``, rounds that wait for their cohort; ``buffered``, a new model whenever ``buffer`` updates
            are in, whichever model they were trained from (FedBuff). Example: ``"buffered"``.
        buffer: updates per new model of ``buffered``; 0 = ``cohort.min-reports``. Example: ``8``.
        staleness_exponent: how fast old updates lose weight: one trained from a model ``t`` versions old counts (1 +
            t)^-exponent. Example: ``0.5``.
        max_staleness: updates from older models than this many versions are not taken. Example: ``20``.
        server_lr: what the mean step of a buffer is multiplied with. Example: ``1.0``.
        rule: how updates are summed, a name of ``coordinator.aggregation``; ``mean`` is the method's own weighted mean.
            Example: ``"trimmed_mean"``.
        trim: share that a rule takes for hostile: of devices, or of an entry's values at each end. Example: ``0.2``.
    """

    mode: Literal["synchronous", "buffered"] = "synchronous"
    buffer: int = 0
    staleness_exponent: float = 0.5
    max_staleness: int = 20
    server_lr: float = 1.0
    rule: str = "mean"
    trim: float = 0.2


def read_aggregation(table: TableReader, rules: Iterable[str]) -> AggregationConfig:
    """The table's values; ``rules`` are the names beside ``mean``."""
    default, hints = AggregationConfig(), typing.get_type_hints(AggregationConfig)
    aggregation = AggregationConfig(
        mode=table.choice("mode", get_args(hints["mode"]), default.mode),
        buffer=table.integer("buffer", default.buffer, low=0, high=1_000_000),
        staleness_exponent=table.number("staleness-exponent", default.staleness_exponent, low=0.0, high=10.0),
        max_staleness=table.integer("max-staleness", default.max_staleness, low=0, high=1_000_000),
        server_lr=table.number("server-lr", default.server_lr, low=0.0, high=100.0, above_low=True),
        rule=table.choice("rule", {default.rule, *rules}, default.rule),
        trim=table.number("trim", default.trim, low=0.0, high=0.49),
    )
    if aggregation.mode != "buffered":
        for key in BUFFERED_KEYS:
            if table.has(key):
                table.problem(key, 'belongs to mode = "buffered"')
    return aggregation


class UpdatesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[updates]``: how a device sends what it trained.

    Attributes:
        precision: ``fp32``, the trained values; ``fp16`` and ``int8``, their difference to the weights of the order in
            fewer bits, the rounding error kept on the device and added to its next difference. Example: ``"int8"``.
        encoding: ``raw``, or ``zstd`` for compressed updates. Example: ``"zstd"``.
        at_once: uploads that are let in at the same time; others wait for their grant. Example: ``24``.
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


class DefencesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[defences]``: which updates are kept out of a sum, and which devices out of later rounds.

    Attributes:
        quarantine_factor: an update whose difference to its weights is this many times the cohort's median norm is set
            aside with the evidence; 0 = none is. Example: ``5.0``.
        examples_factor: an update weighs as if of at most this many times the cohort's median number of examples,
            whatever the device says; 0 = as it says. Example: ``4.0``.
        bar_after: updates of a device rejected or set aside in a row, after which it is not selected; 0 = never.
            Example: ``3``.
        bar_rounds: rounds that such a device sits out. Example: ``10``.
    """

    quarantine_factor: float = 0.0
    examples_factor: float = 0.0
    bar_after: int = 3
    bar_rounds: int = 10


def read_defences(table: TableReader) -> DefencesConfig:
    """The table's values."""
    default = DefencesConfig()
    defences = DefencesConfig(
        quarantine_factor=table.number("quarantine-factor", default.quarantine_factor, low=0.0),
        examples_factor=table.number("examples-factor", default.examples_factor, low=0.0),
        bar_after=table.integer("bar-after", default.bar_after, low=0, high=1_000_000),
        bar_rounds=table.integer("bar-rounds", default.bar_rounds, low=1, high=1_000_000),
    )
    if 0 < defences.quarantine_factor <= 1:
        table.problem(
            "quarantine-factor", f"{defences.quarantine_factor:g} sets half of all updates aside; give over 1"
        )
    if 0 < defences.examples_factor < 1:
        table.problem(
            "examples-factor", f"{defences.examples_factor:g} makes the median itself weigh less; give 1 or more"
        )
    return defences
