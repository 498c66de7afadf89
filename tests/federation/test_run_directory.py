"""What a run leaves behind, for a user's own model with batch norm: files, records, and one model in two forms."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file

from coordinator.cli.entry import main
from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import RunConfig
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import device_shares
from coordinator.run_file.loading import load_config, load_config_text
from tests.federation.small_run import config_text
from tests.federation.tiny_convnet import build, digit_images

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.runtime]

ROUNDS, DEVICES = 2, 2
MEAN, STD, SCALE = 0.3, 0.4, 0.0625


@dataclass(frozen=True)
class Finished:
    """One run by the command line, and the JSON line it printed."""

    folder: Path
    result: dict[str, Any]

    @property
    def config(self) -> RunConfig:
        return load_config(self.folder / "config.toml")

    def final(self) -> dict[str, np.ndarray]:
        return load_file(self.folder / "checkpoints" / "final.safetensors")

    def module(self) -> torch.nn.Module:
        module = build(classes=10)
        module.load_state_dict({name: torch.from_numpy(value) for name, value in self.final().items()}, strict=True)
        return module


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    text = config_text(rounds=ROUNDS, local=DEVICES, size=DEVICES, evaluation='every = 1\nnorm = "static"')
    for old, new in (
        ('build = "mlp"', 'build = "tests.federation.tiny_convnet:build"'),
        ("input = [64]", "input = [1, 8, 8]"),
        ("options = { hidden = [96, 96] }", "options = { width = 4 }"),
        ('name = "fedhm"\nlevels = [4]', 'name = "fedavg"'),
        ('source = "digits"', 'source = "tests.federation.tiny_convnet:digit_images"'),
        ("frobenius-lambda = 0.0001", ""),
        ("scale = 0.0625", f"scale = {SCALE}\nmean = [{MEAN}]\nstd = [{STD}]"),
    ):
        assert old in text
        text = text.replace(old, new)
    folder = tmp_path_factory.mktemp("run-directory")
    (folder / "run.toml").write_text(text)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(["run", str(folder / "run.toml"), "--run-dir", str(folder / "run"), "--json", "--quiet"])
    assert status == 0, printed.getvalue()
    (line,) = printed.getvalue().splitlines()
    return Finished(folder / "run", json.loads(line))


def images(values: np.ndarray) -> torch.Tensor:
    """Raw digits [N, 1, 8, 8] as the model sees them."""
    return torch.from_numpy((values.astype(np.float32) * SCALE - MEAN) / STD).float()


def test_run_directory_holds_what_is_promised(finished: Finished) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert {"config.toml", "summary.json", "metrics.jsonl", "ledger.sqlite", "checkpoints", "devices"} <= names
    assert {p.name for p in (finished.folder / "devices").iterdir()} == {"device-00", "device-01"}
    for folder in (finished.folder / "devices").iterdir():
        assert {"data", "store", "agent.log"} <= {path.name for path in folder.iterdir()}


def test_config_is_the_whole_configuration_and_reads_as_itself(finished: Finished) -> None:
    text = (finished.folder / "config.toml").read_text()
    assert canonical_toml(load_config_text(text)) == text
    assert finished.config.model.build == "tests.federation.tiny_convnet:build"
    with Ledger.open(finished.folder / "ledger.sqlite") as ledger:
        assert ledger.federation().config == text
        assert ledger.federation().state == "finished"


def test_summary_is_the_printed_result(finished: Finished) -> None:
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert finished.result == {"schema": "apportion.run/1", "ok": True, **summary}
    assert (summary["rounds"], summary["devices"], summary["levels"], summary["over_budget"]) == (ROUNDS, DEVICES, 1, 0)
    assert summary["torch_loaded_on_devices"] is False
    assert summary["run_dir"] == str(finished.folder)
    assert summary["bytes_up"] == sum(row["bytes_up"] for row in summary["device_table"]) > 0


def test_audit_log_tells_the_run_and_its_head_is_in_the_summary(finished: Finished) -> None:
    with Ledger.open(finished.folder / "ledger.sqlite") as ledger:
        entries, checked = list(ledger.audit_log.entries()), ledger.audit_log.checked()
    assert checked.findings == ()
    assert [entry.action for entry in entries if entry.action != "device-joined"] == [
        "run-begun",
        "round-committed",
        "round-committed",
        "round-committed",
        "run-ended",
    ]
    assert len({entry.actor for entry in entries if entry.action == "device-joined"}) == DEVICES
    assert entries[-1].actor.startswith("coordinator:")
    kept = json.loads((finished.folder / "summary.json").read_text())["audit_log"]
    assert (kept["entries"], kept["head"], kept["signature"]) == (len(entries), checked.head, "")


def test_metrics_have_a_line_per_committed_round(finished: Finished) -> None:
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    assert [(line["round"], line["program"]) for line in rounds] == [(0, "train"), (1, "train"), (2, "stats")]
    for line in rounds:
        assert line["reports"] == DEVICES
        assert line["torch_loaded"] is False
        assert line["bytes_down"] > 0
    assert rounds[1]["train_loss"] < rounds[0]["train_loss"]
    assert 0.0 <= rounds[0]["evaluation"]["server"]["accuracy"] <= 1.0


def test_final_checkpoint_has_sorted_names_and_no_metadata(finished: Finished) -> None:
    data = (finished.folder / "checkpoints" / "final.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert list(header) == sorted(header) == sorted(build(classes=10).state_dict())
    assert "__metadata__" not in header


def test_static_statistics_are_those_of_the_devices_data(finished: Finished) -> None:
    """The first norm sees a linear map of the input, so its statistics follow from the final weights and the data.

    By hand: each device's mean over its own batches, then the mean over devices weighted by their examples.
    """
    config = finished.config
    dataset = digit_images(None, config.federation.seed)
    final = finished.final()
    weight = torch.from_numpy(final["0.weight"])
    total, examples = np.zeros(4), 0
    for share in device_shares(config, dataset, DEVICES):
        with torch.no_grad():
            mapped = torch.nn.functional.conv2d(images(dataset.x_train[share]), weight, padding=1)
        total += mapped.double().mean(dim=(0, 2, 3)).numpy() * len(share)
        examples += len(share)
    # The last, smaller batch of a device weighs as much as a full one in its mean: hence the tolerance.
    np.testing.assert_allclose(final["1.running_mean"], total / examples, atol=0.02)
    assert np.abs(total / examples).max() > 0.1


def test_torch_and_onnx_forms_of_the_model_agree(finished: Finished) -> None:
    dataset = digit_images(None, finished.config.federation.seed)
    module = finished.module().eval()
    with torch.no_grad():
        expected = module(images(dataset.x_test)).numpy()
    session = onnxruntime.InferenceSession(str(finished.folder / "checkpoints" / "final.onnx"))
    assert [i.name for i in session.get_inputs()] == ["input"]
    (logits,) = session.run(None, {"input": images(dataset.x_test).numpy()})
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert np.array_equal(logits.argmax(1), expected.argmax(1))
    accuracy = float((expected.argmax(1) == dataset.y_test).mean())
    evaluation = finished.result["evaluation"]
    assert finished.result["accuracy"] == pytest.approx(accuracy)
    assert evaluation["onnx_accuracy"] == pytest.approx(accuracy)
    assert evaluation["onnx_predictions_equal"] is True
    assert evaluation["norm"] == "static"
    assert accuracy > 0.5
