"""Devices of a language model that are not as they should be: each is named with its reason, the others go on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset
from coordinator.exporting.base_file import stored_base
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.exporting.model_form import base_choices
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import RecordedUpdate
from coordinator.planning.prediction import MB
from coordinator.planning.requests import STORAGE_MARGIN_BYTES
from coordinator.rounds import orders, remote_devices
from coordinator.rounds.federation import Federation
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import Update
from edge.contracts.plan import BlobRef, WorkOrder, read_order
from edge.supervisor import presence
from export.forms.step_form import StepForm
from profiles.device import DeviceProfile
from profiles.memory import SUPERVISOR_TRANSFER_BYTES
from tests.edge.language.tiny_tokenizer import write_tokenizer
from tests.failing_disk import FailingDisk, failing
from tests.federation.in_process import InProcessFederation
from tests.language_models import run_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def text(devices: int, *, rounds: int = 1, least: int = 2) -> str:
    """The tiny model's run for devices that come by themselves."""
    whole = run_text(rounds=rounds, options="levels = [2]")
    return whole[: whole.index("[[cohort.local]]")] + f"[cohort]\nsize = {devices}\nmin-reports = {least}\n"


def base_of(config: RunConfig) -> tuple[BlobRef, bytes]:
    """The base of a run, made elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with Ledger.create(path / "ledger.sqlite", federation="words", config="", seed=5) as ledger:
            blobs = BlobStore(path / "blobs")
            base = stored_base(config, ledger, blobs)
            return base, blobs.path(base.digest).read_bytes()


def refused(stage: InProcessFederation, device: str, round_index: int = 0) -> tuple[str, str]:
    """Code and reason of what the device said to its order."""
    (entry,) = [a for a in stage.ledger.assignments.of_attempt(round_index, 0) if a.device == device]
    assert entry.state == "refused"
    return entry.code or "", entry.reason or ""


def test_a_full_disk_and_data_that_do_not_fit_leave_the_others_to_train(tmp_path: Path, exports: Path) -> None:
    with InProcessFederation(tmp_path, exports, text(5, rounds=2)) as stage:
        for number, device in enumerate(("pi-1", "pi-2", "full", "long", "foreign")):
            folder = stage.write_data(device, number)
            if device == "long":
                np.savez(folder / "part.npz", x=np.ones((20, 12), np.int64), y=np.ones((20, 12), np.int64))
            elif device == "foreign":
                (folder / "part.npz").unlink()
                write_tokenizer(folder / "tokenizer.json")
                (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 8\n')
                (folder / "part.txt").write_text("the cat sat on the mat and the dog sat on the cat\n" * 9)
        base, _ = base_of(stage.config)
        disk = FailingDisk(tmp_path / "devices" / "full" / "store", 1, seen=f"{base.digest}.raw")
        with failing(disk):
            for device in ("pi-1", "pi-2", "full", "long", "foreign"):
                stage.agent(device)
            stage.run()
        assert stage.committed() == [(0, 0, ["pi-1", "pi-2"]), (1, 0, ["full", "pi-1", "pi-2"])]
        code, reason = refused(stage, "full")
        assert code == "store-full"
        assert f"blob {base.digest[:12]}, 0 of {base.size} bytes are there and stay (No space left on device)" in reason
        code, reason = refused(stage, "long")
        assert (code, "examples have shape (12,), the artifact takes (8,)" in reason) == ("bad-data", True), reason
        code, reason = refused(stage, "foreign")
        assert code == "bad-data"
        assert "symbols are more than the model's 30; give the model's own" in reason


def test_an_order_with_another_base_is_refused_and_the_next_one_is_trained(
    tmp_path: Path, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a mistake at the coordinator: the device's own check, before a step reads a byte of it."""
    with InProcessFederation(tmp_path, exports, text(3, rounds=2)) as stage:
        other, data = base_of(load_config_text(run_text(base="float16")))
        stage.federation.blobs.put(data)
        stage.ledger.blobs.add(other.digest, other.size)
        build = orders.build_order

        def mistaken(*arguments: Any, **options: Any) -> WorkOrder:
            order = build(*arguments, **options)
            is_meant = (order.device, order.round) == ("pi-3", 0)
            return msgspec.structs.replace(order, constants=other) if is_meant else order

        monkeypatch.setattr(orders, "build_order", mistaken)
        for number in range(3):
            stage.write_data(f"pi-{number + 1}", number)
            stage.agent(f"pi-{number + 1}")
        stage.run()
        assert stage.committed() == [(0, 0, ["pi-1", "pi-2"]), (1, 0, ["pi-1", "pi-2", "pi-3"])]
        code, reason = refused(stage, "pi-3")
        assert code == "artifact-corrupt"
        assert "it is another base" in reason or "another model's base" in reason
        assert "order again with the" in reason


def test_the_runs_tokenizer_travels_once_and_is_used_for_texts(tmp_path: Path, exports: Path) -> None:
    """Texts alone, texts with the same tokenizer and texts with another one give the same windows."""
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    tokenizer = write_tokenizer(held_out / "tokenizer.json")
    (held_out / "data.toml").write_text('tokenizer = "tokenizer.json"\n')
    run = text(3, rounds=2, least=3).replace("vocabulary = 30", "vocabulary = 300")
    run = run.replace("[evaluation]", f'[evaluation]\ndata = "{held_out}"')
    with InProcessFederation(tmp_path, exports, run) as stage:
        for device in ("bare", "same", "other"):
            folder = tmp_path / "devices" / device / "data"
            folder.mkdir(parents=True)
            (folder / "part.txt").write_text("the cat sat on the mat and the dog sat on the cat\n" * 9)
            if device != "bare":
                (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 8\n')
                (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
            if device == "other":
                write_tokenizer(folder / "tokenizer.json", text="zyx wvu zyx wvu\n")
            stage.agent(device)
        stage.run()
        first, second = (stage.ledger.updates.of_attempt(number, 0) for number in (0, 1))
        assert [update.report.device for update in first] == ["bare", "other", "same"]
        assert len({update.report.num_examples for update in first}) == 1
        assert all(update.report.bytes_down > tokenizer.stat().st_size for update in first)
        assert all(update.report.bytes_down < tokenizer.stat().st_size for update in second)
        order = read_order(first[0].assignment.order)
        assert order.tokenizer_blob is not None
        assert stage.federation.blobs.read(order.tokenizer_blob.digest) == tokenizer.read_bytes()


LONG = 256
"""Symbols of a window whose step takes megabytes more than one of 32."""


def long_sentences(path: Path | None, seed: int, holdout: float) -> Dataset:
    """Windows of :data:`LONG` symbols, each the one before plus the window's own step."""
    generator = np.random.default_rng(seed)
    first, step = generator.integers(0, 30, (36, 1)), generator.integers(1, 4, (36, 1))
    whole = (first + step * np.arange(LONG + 1)) % 30
    x, y = whole[:, :-1].astype(np.int64), whole[:, 1:].astype(np.int64)
    return Dataset(x[:24], y[:24], x[24:], y[24:], ("0",))


def test_devices_of_a_run_differ_in_window_and_base(
    tmp_path: Path, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has memory and room, one too little memory for the run's window, one too little room for its base."""
    run = text(3, rounds=2, least=3).replace("context = 24", f"context = {LONG}").replace("[8]", f"[{LONG}]")
    run = run.replace("tests.language_models:sentences", "tests.federation.test_language_devices:long_sentences")
    run = run.replace('base = "int8"', 'base = "float32"').replace("[2]", "[2]\nweight-by-examples = true")
    run += '[planner]\nwindows = [32]\nbases = ["int8"]\nmicro-batches = false\n'
    config = load_config_text(run)
    (_, whole_bytes), (_, int8_bytes) = base_choices(config)
    method = method_of_run(config, dense_module(config))
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    costs = [
        CutExporter(config).written_cost(cut, method.program(cut), "onnxruntime", StepForm(window=window))
        for window in (0, 32)
    ]
    growth = [cost.predicted_peak_bytes for cost in costs if cost is not None]
    assert growth[0] > growth[1] + 10 * MB
    probe = presence.probe

    def probed(device: str, **options: Any) -> DeviceProfile:
        found = probe(device, **options)
        room = whole_bytes + STORAGE_MARGIN_BYTES - 1 if device == "full" else found.storage_free_bytes
        budget = 0
        if device == "small":
            idle = found.supervisor_idle_bytes + sum(found.trainer_idle_bytes.values()) + SUPERVISOR_TRANSFER_BYTES
            budget = idle + round(1.2 * (growth[0] + growth[1]) / 2)
        return msgspec.structs.replace(found, storage_free_bytes=room, budget_bytes=budget)

    counted: dict[tuple[int, str], int] = {}
    stored_update = remote_devices.stored_update

    def counting(federation: Federation, entry: RecordedUpdate) -> Update:
        update = stored_update(federation, entry)
        counted[entry.assignment.round, update.device] = update.num_examples
        return update

    monkeypatch.setattr(remote_devices, "stored_update", counting)
    monkeypatch.setattr(presence, "probe", probed)
    with InProcessFederation(tmp_path, exports, run) as stage:
        for number, device in enumerate(("full", "roomy", "small")):
            stage.write_data(device, number)
            stage.agent(device)
        stage.run()
        assert stage.committed() == [(0, 0, ["full", "roomy", "small"]), (1, 0, ["full", "roomy", "small"])]
        for number in range(2):
            entries = {a.device: a for a in stage.ledger.assignments.of_attempt(number, 0)}
            assert {device: entry.form for device, entry in entries.items()} == {
                "full": "base:int8",
                "roomy": "plain",
                "small": "window:32",
            }
            bases = {device: read_order(entry.order).constants for device, entry in entries.items()}
            sizes = {device: base.size for device, base in bases.items() if base is not None}
            assert sizes == {"full": int8_bytes, "roomy": whole_bytes, "small": whole_bytes}
            updates = {u.report.device: u for u in stage.ledger.updates.of_attempt(number, 0)}
            examples = {device: update.report.num_examples for device, update in updates.items()}
            assert examples == {"full": 8, "roomy": 8, "small": 8 * LONG // 32}
            assert {device: counted[number, device] for device in examples} == dict.fromkeys(examples, 8)
            assert updates["full"].report.bytes_down > 0
