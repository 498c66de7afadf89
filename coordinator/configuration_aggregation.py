"""``[aggregation]`` of a run file: when updates are summed, and by which rule."""

from __future__ import annotations

import typing
from typing import Literal, get_args

import msgspec

from coordinator.configuration_reader import TableReader

BUFFERED_KEYS = ("buffer", "staleness-exponent", "max-staleness", "server-lr")
"""Keys that only ``mode = "buffered"`` has."""


class AggregationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[aggregation]``: when updates become a new model, and by which rule.

    Attributes:
        mode: ``synchronous``, rounds that wait for their cohort; ``buffered``, a new model whenever ``buffer`` updates
            are in, whichever model they were trained from (FedBuff).
        buffer: updates per new model of ``buffered``; 0 = ``cohort.min-reports``.
        staleness_exponent: an update trained from a model ``t`` versions old counts (1 + t)^-exponent.
        max_staleness: updates from older models than this many versions are not taken.
        server_lr: what the mean step of a buffer is multiplied with.
        rule: of the sum, a name of ``coordinator.aggregation``; ``mean`` is the method's own weighted mean.
        trim: share of the values of each entry that ``trimmed_mean`` leaves out at each end; the share of devices that
            ``krum`` and ``multi_krum`` take for hostile.
    """

    mode: Literal["synchronous", "buffered"] = "synchronous"
    buffer: int = 0
    staleness_exponent: float = 0.5
    max_staleness: int = 20
    server_lr: float = 1.0
    rule: Literal["mean", "norm_clip", "median", "trimmed_mean", "krum", "multi_krum"] = "mean"
    trim: float = 0.2


def read_aggregation(table: TableReader) -> AggregationConfig:
    """The table's values."""
    default, hints = AggregationConfig(), typing.get_type_hints(AggregationConfig)
    aggregation = AggregationConfig(
        mode=table.choice("mode", get_args(hints["mode"]), default.mode),
        buffer=table.integer("buffer", default.buffer, low=0, high=1_000_000),
        staleness_exponent=table.number("staleness-exponent", default.staleness_exponent, low=0.0, high=10.0),
        max_staleness=table.integer("max-staleness", default.max_staleness, low=0, high=1_000_000),
        server_lr=table.number("server-lr", default.server_lr, low=0.0, high=100.0, above_low=True),
        rule=table.choice("rule", get_args(hints["rule"]), default.rule),
        trim=table.number("trim", default.trim, low=0.0, high=0.49),
    )
    if aggregation.mode != "buffered":
        for key in BUFFERED_KEYS:
            if table.has(key):
                table.problem(key, 'belongs to mode = "buffered"')
    return aggregation
