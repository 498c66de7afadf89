"""What a report and its update must be to count: checked before anything of it is kept or summed.

Once participants are written a sum cannot leave one out, so everything that could stop it is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edge.contracts.errors import ArtifactCorrupt, UpdateRejected
from edge.contracts.evaluation import Evaluation
from edge.contracts.precision import restored
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import check_trained, read_tensor_file
from edge.contracts.tensors import TensorSpec


def check_report(report: TrainReport, *, device: str, round_index: int, where: str, examples: int) -> None:
    """Check that ``report`` is the device's own of that round, stands for examples it has, and can be kept.

    Args:
        examples: how many the device said it has when it last said hello.

    Raises:
        UpdateRejected: it does not.
    """
    if (report.device, report.round) != (device, round_index):
        raise UpdateRejected(
            f"{where}: report says device '{report.device[:64]}', round {report.round}; the assignment is another"
        )
    if report.num_examples < 1:
        raise UpdateRejected(f"{where}: update stands for {report.num_examples} examples, at least 1 expected")
    held_out = 0 if report.scores is None else report.scores.examples
    if examples < report.num_examples + held_out:
        kept_out = f" and {held_out} held out" if held_out else ""
        raise UpdateRejected(
            f"{where}: update stands for {report.num_examples} examples{kept_out}, the device's hello said {examples}; "
            "a device whose data grew says hello again before it trains on it"
        )
    if report.scores is not None:
        _check_scores(report.scores, where)
    labels = report.labels or ()
    if list(labels) != sorted(set(labels)):
        raise UpdateRejected(f"{where}: report says classes {list(labels[:8])}, rising ones expected")


def _check_scores(scores: Evaluation, where: str) -> None:
    for sums in (scores.sums, scores.tuned):
        if not sums:
            continue
        if "loss" not in sums or not scores.examples:
            raise UpdateRejected(
                f"{where}: scores of {scores.examples} held-out examples have sums of {sorted(sums)[:8]}; a loss over "
                "one example or more expected"
            )
        if not 0 <= sums.get("correct", 0.0) <= scores.targets:
            raise UpdateRejected(f"{where}: {sums['correct']:g} of {scores.targets} held-out targets are correct")


def check_update(path: Path, specs: Iterable[TensorSpec], *, where: str, weights: Path | None = None) -> None:
    """Check that the tensor file at ``path`` holds exactly ``specs``, finite and of a trained model's magnitude.

    Args:
        weights: those of the order, where the update may hold differences to them.

    Raises:
        UpdateRejected: it does not, or is no tensor file; its bytes are what the device meant to send.
        ArtifactCorrupt: it, or ``weights``, is not there or damaged: the device is to send it again.
    """
    try:
        tensors = read_tensor_file(path, where=where)
    except ArtifactCorrupt as error:
        if not path.exists():  # deleted here, and no fault of the device
            raise
        raise UpdateRejected(f"{error}; the update is not a tensor file") from error
    if weights is not None:
        tensors = restored(tensors, read_tensor_file(weights, where=where), where=where)
    check_trained(tensors, specs, where=where)
