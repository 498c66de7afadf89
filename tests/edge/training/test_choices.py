"""A device's questions by its artifact's program, beside the same sums of the whole model in torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from coordinator.rounds.choice_scores import choice_entropy
from edge.contracts.evaluation import OPTIONAL, HeldOut
from edge.contracts.plan import BlobRef, Schedule, WorkOrder
from edge.contracts.tensor_file import encode_tensors
from edge.language.questions import ChoiceWindows, choice_sums
from edge.runtimes.onnxruntime import session as onnxruntime
from edge.runtimes.weights_file import WeightsFile
from edge.training.artifact_folder import read_artifact_folder
from edge.training.batches import Examples
from edge.training.evaluation import evaluate
from edge.training.local_data import LocalData
from export.bundle import export_artifact
from export.gate_values import gate_values
from export.language.base_weights import dequantised
from export.language.causal_model import CausalModel
from tests.export.language.models import LENGTH, small_cut, step_of, with_factors

QUESTIONS, CHOICES = 6, 3


def questions() -> ChoiceWindows:
    """Random symbols; choices of one to four."""
    generator = np.random.default_rng(4)
    rows = QUESTIONS * CHOICES
    x = generator.integers(0, 97, (rows, LENGTH)).astype(np.int32)
    y = np.full((rows, LENGTH), -100, np.int32)
    for row in range(rows):
        first, count = generator.integers(2, 8), generator.integers(1, 5)
        y[row, first : first + count] = generator.integers(0, 97, count)
    right = np.zeros((QUESTIONS, CHOICES), bool)
    right[np.arange(QUESTIONS), generator.integers(0, CHOICES, QUESTIONS)] = True
    return ChoiceWindows("questions", x, y, np.repeat(np.arange(QUESTIONS, dtype=np.int32), CHOICES), right.reshape(-1))


def by_hand(model: CausalModel, windows: ChoiceWindows) -> tuple[np.ndarray, list[int]]:
    """Summed negative log-likelihood of each choice, and the place of the least in each question."""
    with torch.no_grad():
        likelihood = F.log_softmax(model(torch.from_numpy(windows.x.astype(np.int64))), 1).numpy()
    costs = np.array(
        [
            -sum(likelihood[r, windows.y[r, t], t] for t in range(LENGTH) if windows.y[r, t] >= 0)
            for r in range(len(windows.x))
        ]
    )
    return costs, costs.reshape(QUESTIONS, CHOICES).argmin(1).tolist()


def test_devices_and_coordinator_count_what_torch_does(tmp_path: Path) -> None:
    module, windows = small_cut("llama"), questions()
    export_artifact(module, step_of(module), tmp_path / "a")
    manifest, files = read_artifact_folder(tmp_path / "a")
    session = onnxruntime.load(manifest, files, threads=1)
    values = gate_values(step_of(module), manifest.tensors, masked=False)
    for name, roles in (("weights", ("parameter", "frozen")), ("base", ("mapped",))):
        held = {s.name: values[s.name] for s in manifest.specs(*roles)}
        (tmp_path / name).write_bytes(encode_tensors(held))
    session.load_state(WeightsFile(tmp_path / "weights", where="weights", constants=tmp_path / "base"))

    made = with_factors(CausalModel(module.architecture)).double()
    for name, parameter in made.named_parameters():
        value = values[name] if name.endswith((".u", ".v")) else dequantised(name, values)
        parameter.data = torch.from_numpy(np.array(value)).double()
    costs, chosen = by_hand(made, windows)
    right = windows.is_right.reshape(QUESTIONS, CHOICES).argmax(1).tolist()
    assert choice_entropy(made, windows, batch=5) == pytest.approx(costs, rel=1e-9)
    sums = choice_sums(windows, costs)
    assert sums["choice_hits"] == sum(a == b for a, b in zip(chosen, right, strict=True))

    generator = np.random.default_rng(0)
    x, y = (generator.integers(0, 97, (8, LENGTH)) for _ in range(2))
    blob = BlobRef("0" * 64, 1, "raw", 1)
    order = WorkOrder(
        assignment_id="0" * 64, federation="f", device="d", round=0, attempt=0, artifact=blob, weights=blob,
        schedule=Schedule(steps=1), batch=4, last_batch="drop", data_seed=1,
        hyper={s.name: 0.1 for s in manifest.specs("hyper")}, upload=(), threads=1,
    )  # fmt: skip
    rule = HeldOut(share=0.5, seed=1, least=5, program="eval")
    found = evaluate(session, manifest, order, rule, Examples(LocalData("d", x, y, choices=windows), manifest))
    assert tuple(found.sums[name] for name in OPTIONAL) == tuple(sums.values())
    assert found.sums["sum:positions"] == y.size
    few = HeldOut(share=0.5, seed=1, least=QUESTIONS + 1, program="eval")
    assert not set(OPTIONAL) & set(
        evaluate(session, manifest, order, few, Examples(LocalData("d", x, y, choices=windows), manifest)).sums
    )
