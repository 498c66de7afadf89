"""Which orders the native trainer can carry out, and why not others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge.contracts.evaluation import HeldOut
from edge.contracts.fixed_sample import FixedSample
from edge.contracts.manifest import ArtifactFile, ArtifactManifest
from edge.contracts.masking import Masking
from edge.contracts.plan import Schedule, Turn
from edge.flat_orders.order import flat_order
from edge.flat_orders.writing import MAGIC, Unable
from edge.runtimes.update_rule import FILE_NAME, UpdateRule
from edge.supervisor.native_trainer import NativeTrainer
from edge.supervisor.trainer_messages import Ready, Train
from tests.edge.tiny_artifact import CLASSES, FEATURES, TinyJob, softmax_graph, softmax_manifest, tiny_job, write_data

MANIFEST = ArtifactManifest.from_bytes(softmax_manifest(softmax_graph()))


@pytest.fixture
def job() -> TinyJob:
    return tiny_job()


@pytest.fixture
def request_of(tmp_path: Path, job: TinyJob) -> Train:
    write_data(tmp_path / "data")
    weights = tmp_path / "weights"
    weights.write_bytes(job.blobs[job.order.weights.digest])
    rule, graph = tmp_path / FILE_NAME, tmp_path / "train.onnx"
    rule.write_bytes(UpdateRule(kind="sgd").to_bytes())
    graph.write_bytes(softmax_graph())
    return Train(
        order=job.order,
        manifest="",
        files={FILE_NAME: str(rule), "train.onnx": str(graph)},
        weights=str(weights),
        data=str(tmp_path / "data"),
        update=str(tmp_path / "update"),
        threads=1,
        progress_s=1.0,
    )


def changed(request: Train, **values: Any) -> Train:
    return msgspec.structs.replace(request, order=msgspec.structs.replace(request.order, **values))


def test_an_order_names_paths_and_begins_with_its_layout(request_of: Train) -> None:
    flat = flat_order(request_of, MANIFEST)
    assert flat[8 : 8 + len(MAGIC)] == MAGIC.encode()
    for path in (request_of.weights, request_of.update, request_of.files["train.onnx"], request_of.data):
        assert path.encode() in flat


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"precision": "int8"}, "sent as int8"),
        ({"encoding": "zstd"}, "packed by zstd"),
        ({"masking": Masking(step=1.0, largest=1, max_weight=1)}, "masked"),
        ({"personal": ("fc.bias",)}, "keeps layers"),
        ({"variates": ""}, "control variates"),
        ({"held_out": HeldOut(share=0.2, seed=1, least=5, tuned=("fc.bias",))}, "fine-tuned"),
        ({"held_out": HeldOut(share=0.7, seed=1, least=5)}, "holds out 0.7"),
        ({"sample": FixedSample(size=0, seed=1)}, "a sample of 0 examples"),
        ({"schedule": Schedule(steps=1, epochs=1)}, "no end"),
        ({"schedule": Schedule(steps=1, turns=(Turn("train", advance_batch=False),))}, "no end"),
        ({"schedule": Schedule(steps=1, turns=(Turn("half"),))}, "no program 'half'"),
        ({"hyper": {"lr": 0.1}}, "no hyper-parameter 'momentum'"),
        ({"upload": ("fc.weight", "other")}, "no program carries a tensor 'other'"),
        ({"upload": ("fc.weight#kept",)}, "no program carries a tensor 'fc.weight#kept'"),
    ],
)
def test_what_it_lacks_is_said(values: dict[str, Any], reason: str, request_of: Train) -> None:
    with pytest.raises(Unable, match=reason):
        flat_order(changed(request_of, **values), MANIFEST)


def test_an_artifact_with_further_files_is_left_to_the_other_trainer(request_of: Train) -> None:
    files = (*MANIFEST.files, ArtifactFile("parts.json", "0" * 64, 2))
    with pytest.raises(Unable, match=r"has the file parts\.json"):
        flat_order(request_of, msgspec.structs.replace(MANIFEST, files=files))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros((4, FEATURES)), "y": np.zeros(4, np.int64), "z": np.zeros(4)}, "not x and y alone"),
        ({"x": np.zeros((4, FEATURES + 1)), "y": np.zeros(4, np.int64)}, "examples have shape"),
        ({"x": np.zeros((4, FEATURES)), "y": np.zeros(4)}, "labels are float64"),
        ({"x": np.zeros((4, FEATURES)), "y": np.zeros((4, 2), np.int64)}, r"labels are int64\[2\]"),
        ({"x": np.zeros((4, FEATURES)), "y": np.zeros(3, np.int64)}, "with .* labels"),
    ],
)
def test_data_that_do_not_fit_are_left_to_the_trainer_that_names_them(
    arrays: dict[str, np.ndarray], reason: str, request_of: Train
) -> None:
    np.savez(Path(request_of.data) / "part.npz", **arrays)
    with pytest.raises(Unable, match=reason):
        flat_order(request_of, MANIFEST)


def test_data_with_a_description_or_of_no_archives_are_left_to_the_other_trainer(request_of: Train) -> None:
    (Path(request_of.data) / "data.toml").write_text("")
    with pytest.raises(Unable, match=r"not a folder of \.npz files alone"):
        flat_order(request_of, MANIFEST)
    with pytest.raises(Unable, match="neither a folder"):
        flat_order(msgspec.structs.replace(request_of, data="package.module:function"), MANIFEST)


def test_weights_of_another_shape_are_left_to_the_trainer_that_names_them(request_of: Train) -> None:
    tensors = tuple(
        msgspec.structs.replace(spec, shape=(CLASSES, FEATURES)) if spec.name == "fc.weight" else spec
        for spec in MANIFEST.tensors
    )
    with pytest.raises(Unable, match=r"'fc\.weight' among the weights"):
        flat_order(request_of, msgspec.structs.replace(MANIFEST, tensors=tensors))


def test_without_a_program_for_it_every_order_is_the_python_trainers(request_of: Train) -> None:
    native = NativeTrainer()
    assert native.flat(request_of, MANIFEST) is None
    native.told(Ready("onnxruntime", "1.19.0", 1, native="/somewhere/trainer"))
    assert native.flat(request_of, MANIFEST) is None
    assert native.reason == "the artifact is for onnxruntime 1.20.0, not for onnxruntime 1.19.0"
    native.told(Ready("onnxruntime", "1.20.0", 1, native="/somewhere/trainer"))
    assert native.flat(request_of, MANIFEST) is not None
    assert native.flat(changed(request_of, precision="fp16"), MANIFEST) is None
    assert native.reason == "its update is sent as fp16"
    native.decline(request_of.order.artifact.digest, "a file has gone")
    assert native.flat(request_of, MANIFEST) is None
    assert native.reason == "a file has gone"


def test_a_program_that_does_not_start_weighs_nothing_and_is_forgotten(request_of: Train, tmp_path: Path) -> None:
    native = NativeTrainer()
    assert native.idle_bytes(request_of.data) == 0
    native.path = str(tmp_path / "gone")
    assert native.idle_bytes(request_of.data) == 0
    assert native.path == ""
