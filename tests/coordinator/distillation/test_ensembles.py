"""Teachers put together: means by brute force, sharpening, Fed-ET's weights by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from coordinator.distillation.ensembles import Mean, SoftTargets, consensus, divergence, sharpened, softmax


def logits_of(teachers: int, examples: int = 6, classes: int = 4, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(0, 2, (examples, classes)).astype(np.float32) for _ in range(teachers)]


def entropy(probabilities: np.ndarray) -> np.ndarray:
    return -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=1)


def test_mean_is_that_of_all_at_once() -> None:
    teachers = logits_of(7)
    mean = Mean()
    for teacher in teachers:
        mean.add(teacher)
    assert mean.count == 7
    assert np.allclose(mean.result(), np.stack(teachers).astype(np.float64).mean(axis=0), rtol=0, atol=1e-15)


def test_mean_of_one_leaves_what_was_added_alone() -> None:
    teacher = logits_of(1)[0]
    before = teacher.copy()
    mean = Mean()
    mean.add(teacher)
    mean.add(teacher)
    assert np.array_equal(teacher, before)
    assert np.array_equal(mean.result(), before)


def test_softmax_is_torchs_and_survives_large_logits() -> None:
    logits = np.concatenate([logits_of(1)[0], np.full((1, 4), 1e4, np.float32)])
    expected = torch.from_numpy(logits).double().softmax(1).numpy()
    assert np.allclose(softmax(logits), expected, rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_sharpening_lowers_entropy_and_keeps_the_class(temperature: float) -> None:
    mean = np.mean([softmax(teacher) for teacher in logits_of(5, examples=50)], axis=0)
    sharp = sharpened(mean, 0.1)
    assert np.allclose(sharp.sum(axis=1), 1)
    assert (entropy(sharp) < entropy(mean)).mean() > 0.95  # probabilities of nearly one have no entropy to lose
    assert np.array_equal(sharp.argmax(axis=1), mean.argmax(axis=1))
    assert (entropy(sharpened(mean, temperature)) >= entropy(sharp) - 1e-12).all()


def test_sharpening_by_hand() -> None:
    # exp(6), exp(3), exp(1) of probabilities .6, .3, .1 at temperature .1
    powers = np.exp([6.0, 3.0, 1.0])
    assert np.allclose(sharpened(np.array([[0.6, 0.3, 0.1]]), 0.1), powers / powers.sum(), rtol=1e-12)


def test_soft_targets_lose_the_mean_divergence() -> None:
    student, teacher = (torch.from_numpy(value).double() for value in logits_of(2))
    targets = SoftTargets(teacher.softmax(1).numpy())
    chosen = np.array([3, 1, 4])
    expected = functional.kl_div(
        student[chosen].log_softmax(1), teacher[chosen].log_softmax(1), reduction="batchmean", log_target=True
    )
    assert float(targets.loss(student[chosen], chosen)) == pytest.approx(float(expected), rel=1e-12)
    assert float(SoftTargets(student.softmax(1).numpy()).loss(student[chosen], chosen)) == pytest.approx(0, abs=1e-12)


def test_divergence_of_a_certain_target_is_finite() -> None:
    target = torch.tensor([[1.0, 0.0, 0.0]])
    assert float(divergence(target, torch.zeros(1, 3))) == pytest.approx(math.log(3))


def test_soft_targets_of_sequences_have_classes_on_axis_one() -> None:
    logits = np.random.default_rng(1).normal(size=(3, 4, 5))  # [N, classes, positions]
    loss = SoftTargets(softmax(logits)).loss(torch.zeros(3, 4, 5, dtype=torch.float64), np.arange(3))
    expected = (math.log(4) - entropy(softmax(logits))).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-12)


def test_consensus_weighs_by_the_variance_of_logits() -> None:
    # Variances over the classes (n - 1): of (0, 0, 3) 3, of (1, 0, -1) 1, of (2, 0, 0) 4/3.
    teachers = [np.array([row]) for row in ([0.0, 0.0, 3.0], [1.0, 0.0, -1.0], [2.0, 0.0, 0.0])]
    weights = np.array([3, 1, 4 / 3]) / (3 + 1 + 4 / 3)
    targets = consensus(teachers, 0.05)
    together = sum(w * t for w, t in zip(weights, teachers, strict=True))
    assert together.argmax() == 2
    assert targets.labels.tolist() == [2]
    assert targets.disagreeing.tolist() == [True]
    # The second and third name class 0: weights 1 and 4/3, made to sum to one.
    others = (1 * teachers[1] + 4 / 3 * teachers[2]) / (1 + 4 / 3)
    assert np.allclose(targets.diverse, softmax(others), rtol=1e-12)


def test_consensus_of_a_sure_one_beats_two_unsure_ones() -> None:
    teachers = [np.array([row]) for row in ([0.0, 4.0, 0.0], [0.4, 0.0, 0.0], [0.4, 0.0, 0.0])]
    assert consensus(teachers, 0.05).labels.tolist() == [1]


def test_where_all_agree_nothing_is_diverse() -> None:
    teachers = [np.array([[3.0, 0, 0], [0, 1, 0]]), np.array([[1.0, 0, 0], [0, 0, 1]])]
    targets = consensus(teachers, 0.5)
    assert targets.disagreeing.tolist() == [False, True]
    student = torch.tensor([[0.3, -0.2, 0.1], [0.5, 0.1, 0.0]], dtype=torch.float64)
    agreed = np.array([0])
    expected = functional.cross_entropy(student[agreed], torch.tensor([0]))
    assert float(targets.loss(student[agreed], agreed)) == pytest.approx(float(expected), rel=1e-12)


def test_consensus_loss_is_cross_entropy_plus_lambda_divergence() -> None:
    teachers = logits_of(4, examples=12)
    student = torch.from_numpy(logits_of(1, examples=12, seed=5)[0]).double()
    targets, chosen = consensus(teachers, 0.05), np.arange(12)
    assert targets.disagreeing.any()
    entropy_part = functional.cross_entropy(student, torch.from_numpy(targets.labels))
    diverse = functional.kl_div(student.log_softmax(1), torch.from_numpy(targets.diverse), reduction="none").sum(1)
    expected = entropy_part + 0.05 * (diverse * torch.from_numpy(targets.disagreeing)).mean()
    assert float(targets.loss(student, chosen)) == pytest.approx(float(expected), rel=1e-12)
    assert float(consensus(teachers, 0.0).loss(student, chosen)) == pytest.approx(float(entropy_part), rel=1e-12)


def test_teachers_without_any_spread_count_alike() -> None:
    targets = consensus([np.zeros((2, 3)), np.zeros((2, 3))], 0.05)
    assert targets.labels.tolist() == [0, 0]
    assert np.isfinite(targets.diverse).all()
