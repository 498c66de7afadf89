"""What an order says of a device's held-out share: how large, by which draw, and whether the model is scored on it."""

from __future__ import annotations

from coordinator.config.run_config import RunConfig
from edge.contracts.evaluation import HeldOut
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.streams import stream_seed

EVAL = "eval"
"""The program of a round in which devices score, and may fine-tune, the final model; nothing comes back but sums."""
EVAL_STATIC = "eval_static"


def held_out(
    config: RunConfig, manifest: ArtifactManifest, device: str, round_index: int, program: str
) -> HeldOut | None:
    """The rule of ``device`` in a round; None in a run that holds nothing out.

    In training rounds the model that they begin with is scored as often as ``[evaluation] every`` says: that of the
    rounds before, or in round 0 the first one. Updates of buffered rounds begin with different models, and score none.
    """
    evaluation = config.evaluation
    if not evaluation.devices:
        return None
    is_due = evaluation.every > 0 and round_index % evaluation.every == 0 and config.aggregation.mode == "synchronous"
    is_scored = program == EVAL or (program == "train" and is_due)
    names = [spec.name for spec in manifest.specs("parameter", "buffer")]
    return HeldOut(
        share=evaluation.devices,
        seed=stream_seed(config.federation.seed, "held-out", 0, device),
        least=evaluation.devices_least,
        program=_program(config, manifest) if is_scored else "",
        tuned=tuple(names) if program == EVAL and config.personal.fine_tune else (),
    )


def _program(config: RunConfig, manifest: ArtifactManifest) -> str:
    """What scores as ``[evaluation] norm`` says: with static statistics where batches' own are what is trained with."""
    has_static = any(program.name == EVAL_STATIC for program in manifest.programs)
    return EVAL_STATIC if has_static and config.evaluation.norm != "batch" else EVAL
