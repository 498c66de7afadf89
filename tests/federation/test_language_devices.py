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
from coordinator.exporting.base_file import stored_base
from coordinator.ledger.ledger import Ledger
from coordinator.rounds import orders
from coordinator.run_file.loading import load_config_text
from edge.contracts.plan import BlobRef, WorkOrder, read_order
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
