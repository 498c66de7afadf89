"""An order as a whole: what is held out, sampled, scored, trained and scored again, on a session whose state is loaded.

Devices and the torch that stands in for them carry an order out with this; where tensors come from and go to is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from edge.contracts.evaluation import Evaluation
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import WorkOrder
from edge.runtimes.base import Session
from edge.training.batches import Examples
from edge.training.evaluation import evaluate, has_improved
from edge.training.fixed_sample import sampled
from edge.training.held_out import split
from edge.training.steps import Outcome, train

if TYPE_CHECKING:
    from edge.training.feature_cache.record_file import RecordFile

NOTHING_TRAINED = Outcome(steps=0, loss=0.0, metrics={}, step_ms_p50=0.0, step_ms_p95=0.0)


@dataclass(frozen=True)
class AssignmentRun:
    """What came of an order, beside the tensors that the session now has.

    Attributes:
        num_examples: that steps may see.
        labels: classes of these, where the order asks for them.
        evaluation: where the order asks for one.
    """

    outcome: Outcome
    num_examples: int
    labels: tuple[int, ...] | None
    evaluation: Evaluation | None


def carry_out(
    session: Session,
    manifest: ArtifactManifest,
    order: WorkOrder,
    examples: Examples,
    *,
    progress: Callable[[int, int, float], None] = lambda step, total, loss: None,
    kept_features: RecordFile | None = None,
) -> AssignmentRun:
    """Score, train and score as ``order`` says.

    Args:
        progress, kept_features: as of :func:`edge.training.steps.train`.

    Raises:
        DeviceRefused: as :func:`edge.training.steps.train`; nothing is left to train on, or a sample of none.
    """
    rule, evaluation = order.held_out_share, None
    trained = examples
    if rule is not None:
        parts = split(examples, rule)
        trained = parts.trained
        evaluation = evaluate(session, manifest, order, rule, parts.held_out) if rule.program else None
    if (sample := order.fixed_sample) is not None:
        trained = sampled(trained, sample)
    turns = order.schedule.turns
    outcome = NOTHING_TRAINED
    if turns:
        outcome = train(session, manifest, order, trained, progress=progress, kept_features=kept_features)
    if rule is not None and rule.tuned and evaluation is not None:
        after = evaluate(session, manifest, order, rule, parts.held_out)
        kept = has_improved(evaluation, after)
        evaluation = msgspec.structs.replace(evaluation, tuned=after.sums, kept=kept)
    labels = trained.labels() if order.report_labels else None
    return AssignmentRun(outcome, len(trained), labels, evaluation)
