"""A student on the proxy set: it learns, repeats to the bit, and leaves alone what is not its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.distillation.ensembles import SoftTargets, softmax
from coordinator.distillation.predictions import BATCH, proxy_logits, torch_threads
from coordinator.distillation.student import Distillation, distilled
from coordinator.submodels.build import module_tensors
from edge.contracts.errors import PlanError, UpdateRejected

INPUTS = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)


def network(seed: int, *, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


def logits(module: nn.Module, tensors: dict[str, np.ndarray]) -> np.ndarray:
    return proxy_logits(module, tensors, INPUTS, norm="running", device="cpu", where="here")


def divergence(tensors: dict[str, np.ndarray], targets: SoftTargets) -> float:
    student = torch.from_numpy(logits(network(0), tensors))
    return float(targets.loss(student, np.arange(len(INPUTS))))


def learn(settings: Distillation, *, seed: int = 3, dropout: float = 0.0) -> dict[str, np.ndarray]:
    module = network(0, dropout=dropout)
    return distilled(
        module, module_tensors(module), INPUTS, teacher(), settings, seed=seed, device="cpu", where="student"
    )


def teacher() -> SoftTargets:
    module = network(1)
    return SoftTargets(softmax(3 * logits(module, module_tensors(module))))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_distillation_lowers_the_divergence_from_the_teachers(optimizer: str, schedule: str) -> None:
    settings = Distillation(steps=200, batch=16, lr=0.02, optimizer=optimizer, momentum=0.9, schedule=schedule)
    before = divergence(module_tensors(network(0)), teacher())
    after = divergence(learn(settings), teacher())
    assert after < before / 4  # measured: 0.216 before, 0.0034 to 0.017 after


def test_same_arguments_give_the_same_bits_and_another_seed_others() -> None:
    settings = Distillation(steps=20, batch=16, lr=0.01)
    first, again, other = learn(settings, dropout=0.5), learn(settings, dropout=0.5), learn(settings, seed=4)
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_random_state_of_the_process_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    learn(Distillation(steps=3, batch=16), dropout=0.5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_steps_leave_every_bit() -> None:
    before = module_tensors(network(0))
    after = learn(Distillation(steps=0))
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_batch_larger_than_the_set_takes_all_of_it() -> None:
    whole, larger = (learn(Distillation(steps=3, batch=size, optimizer="sgd", lr=0.1)) for size in (64, 1000))
    assert all(np.array_equal(whole[name], larger[name]) for name in whole)


def test_statistics_of_the_student_are_those_of_the_proxy_set() -> None:
    after = learn(Distillation(steps=5, batch=64, lr=1e-9))
    assert int(after["1.num_batches_tracked"]) == 5
    assert not np.array_equal(after["1.running_mean"], np.zeros(16))


def test_student_that_diverges_is_refused_with_the_option_to_lower() -> None:
    with pytest.raises(PlanError, match=r"student: .*distillation-lr"):
        learn(Distillation(steps=60, batch=16, lr=1e30, optimizer="sgd", momentum=0.9, schedule="constant"))


def test_predictions_are_those_of_one_pass_and_of_the_named_statistics() -> None:
    module = network(0)
    tensors = {**module_tensors(module), "1.running_mean": np.full(16, 0.5, np.float32)}
    with torch.no_grad():
        module.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()})
        expected = module.eval()(torch.from_numpy(INPUTS)).numpy()
        module.train()
        of_batch = module(torch.from_numpy(INPUTS)).numpy()
    assert np.allclose(logits(network(5), tensors), expected, rtol=0, atol=1e-6)
    batch = proxy_logits(network(5), tensors, INPUTS, norm="batch", device="cpu", where="here")
    assert np.allclose(batch, of_batch, rtol=0, atol=1e-6)
    assert not np.allclose(batch, expected, atol=0.05)


@pytest.mark.parametrize("count", [1, BATCH, BATCH + 1, 2 * BATCH + 1, 2 * BATCH + 2])
def test_every_input_is_predicted_once(count: int) -> None:
    inputs = np.resize(INPUTS, (count, 6))
    module = nn.Linear(6, 4)
    found = proxy_logits(module, module_tensors(module), inputs, norm="running", device="cpu", where="here")
    with torch.no_grad():
        assert np.allclose(found, module(torch.from_numpy(inputs)).numpy(), atol=1e-6)


def test_batch_statistics_of_a_last_single_example_join_the_batch_before() -> None:
    inputs = np.resize(INPUTS, (BATCH + 1, 6))
    module = network(0)
    found = proxy_logits(module, module_tensors(module), inputs, norm="batch", device="cpu", where="here")
    assert found.shape == (BATCH + 1, 4)


def test_predictions_that_are_not_finite_are_refused_by_name() -> None:
    module = nn.Linear(6, 4)
    tensors = {**module_tensors(module), "weight": np.full((4, 6), 3e38, np.float32)}
    with pytest.raises(UpdateRejected, match="pi-07"):
        proxy_logits(module, tensors, 10 * np.abs(INPUTS), norm="running", device="cpu", where="device pi-07")


def test_threads_are_as_before_afterwards_whatever_happens() -> None:
    before = torch.get_num_threads()
    seen = []

    def fails() -> None:
        with torch_threads(before + 1):
            seen.append(torch.get_num_threads())
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fails()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
