"""What a report and its update must be to count: checked before anything of it is kept or summed.

Once participants are written a sum cannot leave one out, so everything that could stop it is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from edge.contracts.codec import encode_json
from edge.contracts.errors import ArtifactCorrupt, MessageRejected, UpdateRejected
from edge.contracts.precision import restored
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import check_trained, read_tensor_file
from edge.contracts.tensors import TensorSpec

MAX_COUNT = 2**53
"""Counts from a device up to here fit a float64 and a database's integers."""


def check_report(report: TrainReport, *, device: str, round_index: int, where: str, examples: int = 0) -> None:
    """Check that ``report`` is the device's own of that round, stands for examples it has, and can be kept.

    Args:
        examples: how many the device said it has when it last said hello; 0 = not known.

    Raises:
        UpdateRejected: it does not.
    """
    if (report.device, report.round) != (device, round_index):
        raise UpdateRejected(
            f"{where}: report says device '{report.device[:64]}', round {report.round}; the assignment is another"
        )
    if not 0 < report.num_examples <= MAX_COUNT:
        raise UpdateRejected(f"{where}: update stands for {report.num_examples} examples, at least 1 expected")
    if 0 < examples < report.num_examples:
        raise UpdateRejected(
            f"{where}: update stands for {report.num_examples} examples, the device's hello said {examples}; a device "
            "whose data grew says hello again before it trains on it"
        )
    for name in report.__struct_fields__:
        value = getattr(report, name)
        if type(value) is int and not 0 <= value <= MAX_COUNT:
            raise UpdateRejected(f"{where}: report says {name} {value}, a count up to {MAX_COUNT} expected")
    labels = report.labels or ()
    if list(labels) != sorted(set(labels)) or any(not 0 <= label <= MAX_COUNT for label in labels):
        raise UpdateRejected(f"{where}: report says classes {list(labels[:8])}, rising ones from 0 expected")
    try:
        check_storable(report, where=where)
    except MessageRejected as error:
        raise UpdateRejected(str(error)) from error


def check_update(path: Path, specs: Iterable[TensorSpec], *, where: str, weights: Path | None = None) -> None:
    """Check that the tensor file at ``path`` holds exactly ``specs``, finite and of a trained model's magnitude.

    Args:
        weights: those of the order, where the update may hold differences to them.

    Raises:
        UpdateRejected: it does not, or is no tensor file; its bytes are what the device meant to send.
    """
    try:
        tensors = read_tensor_file(path, where=where)
    except ArtifactCorrupt as error:
        raise UpdateRejected(f"{error}; the update is not a tensor file") from error
    if weights is not None:
        tensors = restored(tensors, read_tensor_file(weights, where=where), where=where)
    check_trained(tensors, specs, where=where)


def check_storable(value: msgspec.Struct, *, where: str) -> None:
    """Check that ``value`` can be kept and read again; JSON has no form of NaN and infinities.

    Raises:
        MessageRejected: it cannot.
    """
    try:
        msgspec.json.decode(encode_json(value), type=type(value))
    except msgspec.MsgspecError as error:
        raise MessageRejected(f"{where}: holds a number that is not finite ({error}); send it again") from error
