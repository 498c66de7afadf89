"""What a model comes to on a device's held-out share: one pass of a program, its scalars summed.

Which scalars there are is the program's to say: a metric is an output that is a sum over the batch. Questions beside
the examples add their own.
"""

from __future__ import annotations

import numpy as np

from edge.contracts.evaluation import FEWEST, Evaluation, HeldOut
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import WorkOrder
from edge.contracts.tensors import concrete_shape
from edge.runtimes.base import Session
from edge.runtimes.micro_batches import run_step
from edge.training.batches import Examples
from edge.training.steps import Feeder


def evaluate(
    session: Session, manifest: ArtifactManifest, order: WorkOrder, rule: HeldOut, examples: Examples
) -> Evaluation:
    """Sums over ``examples``, in batches in their order; without any where they are fewer than ``rule`` asks for.

    As many questions as examples are needed for them to count, and they count beside a held-out share alone. The
    session's state stays as it is, and the program is given back.

    Raises:
        DataError: questions that are not for this model.
        DeviceRefused: a program that the runtime could not execute, or that takes what the order does not give.
        PlanError: the artifact has no such program.
    """
    least = max(rule.least, FEWEST)
    if not rule.program or len(examples) < least:
        return Evaluation(examples=len(examples))
    feeder = Feeder(manifest, rule.program, order, examples)
    # As a deployed model: it knows all classes, whichever the device has.
    masks = {s.name: np.ones(concrete_shape(s), s.dtype) for s in manifest.specs("label_mask")}
    masks = {name: mask for name, mask in masks.items() if name in manifest.program(rule.program).inputs}
    size = max(1, order.batch // manifest.micro_batches)
    sums: dict[str, float] = {}
    targets = 0

    def run(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
        return dict(run_step(session, manifest, rule.program, {**feeder.feeds(x, y, 0), **masks}))

    for start in range(0, len(examples), size):
        x, y = examples.batch(np.arange(start, min(start + size, len(examples))), None)
        for name, value in run(x, y).items():
            sums[name] = sums.get(name, 0.0) + value
        targets += y.size
    if examples.choices is not None and len(examples.choices) >= least:
        from edge.training.choices import score_choices

        sums |= score_choices(examples.choices, manifest, run)
    session.forget(rule.program)
    return Evaluation(examples=len(examples), targets=targets, sums=dict(sorted(sums.items())))


def has_improved(before: Evaluation, after: Evaluation) -> bool:
    """Whether the loss is lower than it was, and no fewer are correct; not where either could not be scored."""
    if not before.sums or not after.sums:
        return False
    is_right = after.sums.get("correct", 0.0) >= before.sums.get("correct", 0.0)
    return is_right and after.sums["loss"] < before.sums["loss"]
