"""From a configuration to an order: learning rates by hand, the scalars a program has, and what comes back."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from coordinator.config.run_config import RunConfig
from coordinator.config.training import TrainingConfig
from coordinator.device_scores.held_out import EVAL
from coordinator.planning.artifacts import Artifact
from coordinator.rounds.selection import asks_all
from coordinator.rounds.work_order import build_order, hyper_parameters, learning_rate
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import DeviceProgram, LocalWork
from edge.contracts.errors import PlanError
from edge.contracts.fixed_sample import FixedSample
from edge.contracts.manifest import ArtifactManifest, GraphOutput, Program
from edge.contracts.plan import BlobRef, Turn, WorkOrder, assignment_id
from edge.contracts.streams import stream_seed
from edge.contracts.tensors import TensorSpec
from profiles.device import DeviceProfile
from tests.contracts.samples import MANIFEST

BUFFER = TensorSpec("bn.running_mean", (4,), "float32", "buffer")
ACCUMULATOR = TensorSpec("fc1.weight#squares", (10, 64), "float32", "accumulator")
STATS = Program(
    "stats", "stats.onnx", ("x", "bn.running_mean", "stats_momentum"), (GraphOutput("m", "bn.running_mean"),)
)
WITH_NORM = msgspec.structs.replace(
    MANIFEST,
    tensors=(*MANIFEST.tensors, BUFFER, ACCUMULATOR, TensorSpec("stats_momentum", (), "float32", "hyper")),
    programs=(*MANIFEST.programs, STATS),
)


def config(training: str = "epochs = 2") -> RunConfig:
    return load_config_text(
        f"""
[federation]
name = "fed"
seed = 11
rounds = 10
[model]
build = "mlp"
[method]
name = "fedavg"
[data]
source = "digits"
[cohort]
size = 1
[runtime]
threads = 3
[training]
batch = 16
last-batch = "wrap"
{training}
"""
    )


def order(training: str = "epochs = 2", *, manifest: ArtifactManifest = WITH_NORM, **options: Any) -> WorkOrder:
    data = manifest.to_bytes()
    given = {"round_index": 4, "attempt": 1, "program": "train", "peak_bytes": 123, "threads": 3, **options}
    return build_order(
        config(training),
        "fed",
        DeviceProfile(device="pi-1"),
        Artifact(manifest, BlobRef("a" * 64, len(data), "raw", len(data))),
        BlobRef("b" * 64, 9, "raw", 9),
        DeviceProgram(),
        **given,
    )


def test_method_may_ask_for_other_work_than_the_run_says() -> None:
    plain, asked = order(), order(work=LocalWork(steps=500, examples=200))
    assert plain.fixed_sample is None
    assert asked.fixed_sample == FixedSample(size=200, seed=stream_seed(11, "fixed-sample", 0, "pi-1"))
    assert (asked.schedule.epochs, asked.schedule.steps) == (0, 500)
    assert order(work=LocalWork(examples=200)).schedule == plain.schedule
    later = order(work=LocalWork(steps=500, examples=200), round_index=9)
    assert later.fixed_sample == asked.fixed_sample
    assert later.data_seed != asked.data_seed
    # A round for statistics is over all examples.
    stats = order(work=LocalWork(steps=500, examples=200), program="stats")
    assert (stats.fixed_sample, stats.schedule.epochs) == (None, 1)


def test_learning_rate_is_constant_by_default() -> None:
    assert [learning_rate(TrainingConfig(lr=0.3), r, 10) for r in (0, 5, 9)] == [0.3, 0.3, 0.3]


def test_learning_rate_cosine_by_hand() -> None:
    """0.1 to 0.02 over 4 rounds: 0.02 + 0.04 (1 + cos(pi r / 4)), so cos = 1, sqrt(1/2), 0, -sqrt(1/2)."""
    training = TrainingConfig(lr=0.1, lr_schedule="cosine", lr_final=0.02)
    half = math.sqrt(0.5)
    by_hand = [0.1, 0.02 + 0.04 * (1 + half), 0.06, 0.02 + 0.04 * (1 - half)]
    assert [learning_rate(training, r, 4) for r in range(4)] == pytest.approx(by_hand, rel=1e-12)


def test_learning_rate_warms_up_under_every_schedule() -> None:
    """Of W = 3 rounds the first has 1/4, 2/4, 3/4 of what the schedule says; the fourth has all of it."""
    steps = TrainingConfig(lr=0.8, lr_schedule="steps", lr_milestones=(2,), lr_factor=0.5, lr_warm_up=3)
    assert [learning_rate(steps, r, 6) for r in range(5)] == pytest.approx([0.2, 0.4, 0.3, 0.4, 0.4], rel=1e-12)
    cosine = TrainingConfig(lr=0.1, lr_schedule="cosine", lr_warm_up=1)
    assert learning_rate(cosine, 0, 4) == pytest.approx(0.05, rel=1e-12)
    assert learning_rate(cosine, 2, 4) == pytest.approx(0.05, rel=1e-12)  # half of the way down


def test_hyper_parameters_are_those_the_program_takes() -> None:
    training = TrainingConfig(momentum=0.9, weight_decay=1e-4)
    assert hyper_parameters(training, DeviceProgram(), WITH_NORM, "train", lr=0.05) == {"lr": 0.05}
    assert hyper_parameters(training, DeviceProgram(), WITH_NORM, "stats", lr=0.05) == {"stats_momentum": 1.0}


@pytest.mark.parametrize(
    ("training", "extra", "expected"),
    [
        (TrainingConfig(weight_decay=2e-4), {}, 2e-4),  # FedHM: the run's weight decay unless told otherwise
        (TrainingConfig(weight_decay=2e-4, frobenius_lambda=3e-4), {}, 3e-4),
        (TrainingConfig(frobenius_lambda=3e-4), {"frobenius_lambda": 5e-4}, 5e-4),  # the method has the last word
    ],
)
def test_frobenius_lambda_comes_from_the_nearest_setting(
    training: TrainingConfig, extra: dict[str, float], expected: float
) -> None:
    train = msgspec.structs.replace(MANIFEST.programs[0], inputs=("x", "y", "lr", "frobenius_lambda"))
    manifest = msgspec.structs.replace(
        MANIFEST,
        tensors=(*MANIFEST.tensors, TensorSpec("frobenius_lambda", (), "float32", "hyper")),
        programs=(train,),
    )
    values = hyper_parameters(training, DeviceProgram(extra_hyper=extra), manifest, "train", lr=0.1)
    assert values == {"lr": 0.1, "frobenius_lambda": expected}


def test_scalar_nobody_has_a_value_for_is_named() -> None:
    train = msgspec.structs.replace(MANIFEST.programs[0], inputs=("x", "y", "lr", "temperature"))
    manifest = msgspec.structs.replace(
        MANIFEST, tensors=(*MANIFEST.tensors, TensorSpec("temperature", (), "float32", "hyper")), programs=(train,)
    )
    with pytest.raises(PlanError, match=r"program 'train' has scalar inputs \['temperature'\] without a value"):
        hyper_parameters(TrainingConfig(), DeviceProgram(), manifest, "train", lr=0.1)


def test_order_of_a_training_round() -> None:
    made = order()
    assert made.assignment_id == assignment_id("fed", 4, "pi-1", 1)
    assert (made.round, made.attempt, made.device, made.federation) == (4, 1, "pi-1", "fed")
    assert (made.schedule.epochs, made.schedule.steps, made.schedule.turns) == (2, 0, (Turn("train"),))
    assert (made.batch, made.last_batch, made.threads, made.peak_bytes) == (16, "wrap", 3, 123)
    assert made.upload == ("fc1.weight#kept", "bn.running_mean", "fc1.weight#squares")  # slots start at zero each time
    assert made.data_seed == stream_seed(11, "batch-order", 4, "pi-1")
    assert order(attempt=2).data_seed == made.data_seed
    assert order(round_index=5).data_seed != made.data_seed


def test_order_of_steps_has_no_epochs() -> None:
    schedule = order("steps = 7").schedule
    assert (schedule.epochs, schedule.steps) == (0, 7)


def test_order_of_the_statistics_round_is_one_pass_that_brings_buffers_back() -> None:
    made = order("steps = 7", program="stats")
    assert (made.schedule.epochs, made.schedule.steps, made.schedule.turns) == (1, 0, (Turn("stats"),))
    assert made.upload == ("bn.running_mean",)
    assert made.hyper == {"stats_momentum": 1.0}


def test_final_statistics_and_scores_are_asked_of_all_but_masked_sums_of_one_cohort() -> None:
    open_sums = config()
    masked = msgspec.structs.replace(
        open_sums, privacy=msgspec.structs.replace(open_sums.privacy, secure_aggregation=True)
    )
    asked = {program: asks_all(open_sums, program) for program in ("train", "stats", EVAL)}
    assert asked == {"train": False, "stats": True, EVAL: True}
    assert not asks_all(masked, "stats")
