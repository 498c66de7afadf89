"""What the report of a site's device must be to count: one that cannot be passed on would spoil the whole site's."""

from __future__ import annotations

import math

from edge.contracts.errors import UpdateRejected
from edge.contracts.report import TrainReport

MAX_COUNT = 2**53
"""Counts up to here are exact in float64."""


def check_report(report: TrainReport, *, device: str, round_index: int, examples: int) -> None:
    """Nothing when the report is the device's own, stands for examples it has, and holds finite figures.

    Args:
        examples: how many the device said it has when it last said hello.

    Raises:
        UpdateRejected: it is not, or does not.
    """
    where = f"device {device}, round {round_index}"
    if (report.device, report.round) != (device, round_index):
        raise UpdateRejected(f"{where}: report says device '{report.device[:64]}', round {report.round}")
    if not 0 < report.num_examples <= min(examples, MAX_COUNT):
        raise UpdateRejected(
            f"{where}: update stands for {report.num_examples} examples, 1 to {examples} expected; a device whose data "
            "grew says hello again before it trains on it"
        )
    figures = {name: getattr(report, name) for name in report.__struct_fields__}
    for name, value in {**figures, **{f"metric {n[:64]}": v for n, v in report.metrics.items()}}.items():
        if type(value) is int and not 0 <= value <= MAX_COUNT:
            raise UpdateRejected(f"{where}: report says {name} {value}, a count up to {MAX_COUNT} expected")
        if type(value) is float and not math.isfinite(value):
            raise UpdateRejected(f"{where}: report says {name} {value}, a finite number expected")
