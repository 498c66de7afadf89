"""The parity table: what its cells are, that none is left out, and that its losses are the runtime's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.parity_cells import MODELS, STEPS, Cell, blocks_to_freeze, cells
from benchmarks.parity_page import page
from benchmarks.parity_table import ROWS, losses_beside_torch, measure, prepare, read_rows
from coordinator.cli.model_arguments import ModelArguments
from edge.runtimes import RUNTIMES
from export.bundle import export_artifact

EXPORTED = {
    "outcome": "exported",
    "optimizer": "sgd",
    "trained": 1234,
    "parameters": 5678,
    "max_grad_rel_err": 4e-7,
    "torch_fp32_rel_err": 2e-7,
    "runtime_version": "9.8.7",
    "losses": [2.5, 2.25, 2.0, 1.75, 1.5],
    "losses_float64": [2.5, 2.25, 2.0, 1.75, 1.625],
    "losses_float32": [2.5, 2.25, 2.0, 1.75, 1.5625],
    "loss_rel_err": 0.05,
    "torch_fp32_loss_rel_err": 0.025,
}


def test_every_runtime_has_every_model_in_every_form() -> None:
    everything = list(cells())
    assert len(everything) == len(set(everything)) == len(RUNTIMES) * len(MODELS) * 3
    assert {cell.runtime for cell in everything} == set(RUNTIMES)


def test_two_thirds_are_frozen_to_the_nearest_block() -> None:
    frozen = {model: blocks_to_freeze(model) for model in ("mlp", "conv2", "resnet20", "resnet18", "vgg11", "vit")}
    assert frozen == {
        "mlp": (2, 3),
        "conv2": (3, 4),
        "resnet20": (6, 9),
        "resnet18": (5, 8),
        "vgg11": (5, 8),
        "vit": (3, 4),
    }


def test_lora_and_factorization_share_a_model_but_no_layer() -> None:
    prepared = prepare(Cell("vit+lora", "fedhm:4", "onnxruntime"))
    forms = {path: entry.factor.form for path, entry in prepared.cut.items() if entry.factor}
    assert [forms[f"blocks.0.{name}"] for name in ("attention.qkv", "fc2")] == ["additive_lora", "linear"]
    trained = {name for name, _ in prepared.module.named_parameters()} - set(prepared.step.frozen)
    assert {"blocks.3.fc2.u", "blocks.3.fc2.v", "blocks.0.attention.qkv.u", "head.weight"} <= trained
    assert "blocks.0.attention.qkv.weight" not in trained
    assert len(prepared.step.frobenius) == 4


def test_page_holds_every_cell_and_the_reason_of_a_refused_one() -> None:
    everything = list(cells())
    rows = {everything[0]: EXPORTED | {"model": "mlp", "form": "full", "runtime": everything[0].runtime}}
    rows[everything[1]] = {"outcome": "refused", "reason": "layer 'fc1' has\nno step | use another"}
    text = page(rows, everything, "somewhere")
    table = text.split("## Gradients")[1].split("## What")[0]
    assert sum(line.startswith(f"| {model} |") for line in table.splitlines() for model in MODELS) == len(everything)
    assert "refused: layer 'fc1' has no step \\| use another" in table
    assert table.count("not measured") == len(everything) - 2
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {10}
    assert "| 1,234 of 5,678 | 4.0e-07 | 2.0e-07 | 2.0 | 5.0e-02 | 2.5e-02 |" in table
    assert "onnxruntime 9.8.7" in text


def test_last_row_of_a_cell_counts(tmp_path: Path) -> None:
    lines = [{"model": "mlp", "form": "full", "runtime": "r", "outcome": outcome} for outcome in ("failed", "refused")]
    (tmp_path / ROWS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_rows(tmp_path)[Cell("mlp", "full", "r")]["outcome"] == "refused"
    assert read_rows(tmp_path / "nowhere") == {}


def test_cut_that_the_model_cannot_have_is_a_row_with_its_reason() -> None:
    row = measure(Cell("lstm", "fedhm:1.01", "onnxruntime"))
    assert (row["outcome"], row["model"]) == ("refused", "lstm")
    assert "makes none of 4 layers" in row["reason"]


@pytest.mark.slow
@pytest.mark.runtime
def test_losses_are_the_runtimes_own_beside_torch(tmp_path: Path) -> None:
    prepared = ModelArguments("tests.cli.own_models:wide", (8,), 3, 4, cut="fedhm:4").prepare()
    folder = tmp_path / "artifact"
    manifest = export_artifact(prepared.module, prepared.step, folder, build=prepared.build)
    row = losses_beside_torch(prepared, manifest.tensors, folder, "onnxruntime")
    assert len(row["losses"]) == len(row["losses_float64"]) == len(row["losses_float32"]) == STEPS
    assert row["losses_float64"][-1] < row["losses_float64"][0]  # it does train
    assert row["loss_rel_err"] < 1e-5
    assert row["losses"] != row["losses_float64"]
    (folder / "train.onnx").write_bytes(b"not a graph")
    broken = losses_beside_torch(prepared, manifest.tensors, folder, "onnxruntime")
    assert broken["outcome"] == "failed"
    assert "train.onnx" in broken["reason"]
