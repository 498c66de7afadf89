"""ONNX Runtime Training sessions in their own environment: steps, state, refusals, and a trainer without torch."""

from __future__ import annotations

import json
import queue
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from edge.contracts.errors import ConfigError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.environments import runtime_python
from edge.supervisor.trainer_link import TrainerEvent, TrainerLink, TrainerSaid
from edge.supervisor.trainer_messages import Train, Trained
from edge.training.artifact_folder import read_artifact_folder
from export.bundle import export_artifact
from export.formats.ort_training.environment import RuntimeEnvironment
from export.gate_values import gate_hyper, gate_values
from tests.edge.runtimes.test_hostile_graphs import tensor_of
from tests.export.test_step import module, step

pytestmark = pytest.mark.runtime
RUNTIME = "onnxruntime_training"
PRELUDE = """
import json, sys
from pathlib import Path
import msgspec, numpy as np
from edge.training.artifact_folder import read_artifact_folder
from edge.contracts.errors import ApportionError
from edge.contracts.tensor_file import decode_tensors
from edge.runtimes import runtime
from edge.training.self_test import self_test_losses
folder, values = Path(sys.argv[1]), decode_tensors(Path(sys.argv[2]).read_bytes(), where="test")
manifest, files = read_artifact_folder(folder)
state = {t.name: values[t.name] for t in manifest.specs("parameter", "frozen", "buffer")}
feeds = {n: values[n] for n in manifest.program("train").inputs if n not in state and "#" not in n}
def opened(changed=manifest, paths=files):
    session = runtime("onnxruntime_training").load(changed, paths, threads=1)
    session.load_state(state)
    return session
def refusal(action):
    try:
        action()
    except ApportionError as error:
        return f"{error.code}: {error}"
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        RuntimeEnvironment().close()
    except ConfigError as error:
        pytest.skip(f"onnxruntime-training is not installed here: {error.hint}")
    folder = tmp_path_factory.mktemp("ort") / "artifact"
    export_artifact(module(), step(), folder, runtime=RUNTIME)
    return folder


def in_runtime(artifact: Path, folder: Path, body: str) -> object:
    """What ``body`` assigned to ``result``, in the runtime's environment."""
    manifest, _ = read_artifact_folder(artifact)
    (folder / "values").write_bytes(encode_tensors(gate_values(step(), manifest.tensors)))
    command = [str(runtime_python(RUNTIME)), "-c", f"{PRELUDE}\n{body}\nprint(json.dumps(result))"]
    done = subprocess.run([*command, str(artifact), str(folder / "values")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_session_loads_neither_torch_nor_onnx_and_repeats_the_self_test(artifact: Path, tmp_path: Path) -> None:
    result = in_runtime(
        artifact,
        tmp_path,
        "losses = self_test_losses(opened(), manifest, steps=3)\n"
        "result = [losses, [m for m in sys.modules if m.split('.')[0] in ('torch', 'onnx')],"
        " 'libtorch' in Path('/proc/self/maps').read_text()]",
    )
    manifest, _ = read_artifact_folder(artifact)
    losses, modules, has_torch = result  # type: ignore[misc]
    assert losses == pytest.approx(manifest.self_test.losses, rel=1e-6)
    assert (modules, has_torch) == ([], False)


def test_state_starts_again_with_each_order_and_is_read_by_name(artifact: Path, tmp_path: Path) -> None:
    first, again, momentum, mean = in_runtime(
        artifact,
        tmp_path,
        "session = opened()\n"
        "first = [session.run('train', feeds)['loss'] for _ in range(3)]\n"
        "momentum = float(abs(session.read('stem.weight#momentum')).max())\n"
        "mean = float(abs(session.read('norm.running_mean') - state['norm.running_mean']).max())\n"
        "session.load_state(state)\n"
        "result = [first, [session.run('train', feeds)['loss'] for _ in range(3)], momentum, mean]",
    )  # type: ignore[misc]
    assert first == again
    assert len(set(first)) == 3
    assert momentum > 0
    assert mean > 1e-3


def test_any_batch_size_trains(artifact: Path, tmp_path: Path) -> None:
    losses = in_runtime(
        artifact,
        tmp_path,
        "def loss(count):\n"
        "    x, y = np.zeros((count, 3, 6, 6), np.float32), np.zeros(count, np.int64)\n"
        "    return opened().run('train', feeds | {'input': x, 'target': y})['loss']\n"
        "result = [loss(count) for count in (2, 5, 9)]",
    )
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)  # type: ignore[index]


def test_what_does_not_fit_is_refused_with_its_name(artifact: Path, tmp_path: Path) -> None:
    refusals = in_runtime(
        artifact,
        tmp_path,
        "session = opened()\n"
        "newer = msgspec.structs.replace(manifest, minimum_runtime_version='1.20.0')\n"
        "result = [\n"
        "    refusal(lambda: session.load_state({n: v for n, v in state.items() if n != 'stem.bias'})),\n"
        "    refusal(lambda: session.load_state(state | {'stem.bias': np.zeros(5, np.float32)})),\n"
        "    refusal(lambda: session.run('prefix', {})),\n"
        "    refusal(lambda: session.read('stem.nothing')),\n"
        "    refusal(lambda: session.run('train', feeds | {'input': np.zeros((2, 3, 6, 5), np.float32)})),\n"
        "    refusal(lambda: opened(changed=newer)),\n"
        "]",
    )
    missing, shape, program, tensor, batch, version = refusals  # type: ignore[misc]
    assert "no parameter 'stem.bias'" in missing
    assert "float32[5]" in shape
    assert "no program 'prefix', it has train, eval, stats" in program
    assert "stem.nothing" in tensor
    assert batch.startswith("device-refused: program 'train' failed")
    assert "1.20.0, 1.19.2 is installed" in version


def test_damaged_files_are_refused_and_end_no_process(artifact: Path, tmp_path: Path) -> None:
    elsewhere = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor_of("../key.pem")])).SerializeToString()
    refusals = in_runtime(
        artifact,
        tmp_path,
        "def damaged(name, data):\n"
        "    path = Path(sys.argv[2]).parent / name\n"
        "    path.write_bytes(data)\n"
        "    return refusal(lambda: opened(paths={**files, name: path}))\n"
        "model = files['training_model.onnx'].read_bytes()\n"
        "result = [damaged('training_model.onnx', data) for data in (b'', model[: len(model) // 2], b'no model')]\n"
        "result += [damaged('checkpoint', data) for data in (b'', b'no checkpoint')]\n"
        # Messages that follow one another are one message to protobuf: the model, with one initializer more.
        f"result += [damaged('training_model.onnx', model + {elsewhere!r})]",
    )
    expected = ["training_model.onnx"] * 3 + ["checkpoint"] * 2 + ["training_model.onnx: it takes values from another"]
    for text, file in zip(refusals, expected, strict=True):  # type: ignore[call-overload]
        assert f"cannot load {file}" in text


def test_trainer_process_carries_out_an_order_without_torch(artifact: Path, tmp_path: Path) -> None:
    manifest, files = read_artifact_folder(artifact)
    values = gate_values(step(), manifest.tensors)
    weights = encode_tensors({t.name: values[t.name] for t in manifest.specs("parameter", "buffer")})
    (tmp_path / "weights").write_bytes(weights)
    (tmp_path / "data").mkdir()
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(20, 3, 6, 6)).astype(np.float32), generator.integers(0, len(manifest.classes), 20)
    np.savez(tmp_path / "data" / "part.npz", x=x, y=y)
    events: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
    link = TrainerLink(python=str(runtime_python(RUNTIME)), runtime=RUNTIME, deliver=events.put)
    link.send(
        Train(
            order=_order(manifest, len(weights)),
            manifest=str(artifact / "manifest.json"),
            files={name: str(path) for name, path in files.items()},
            weights=str(tmp_path / "weights"),
            data=str(tmp_path / "data"),
            update=str(tmp_path / "update"),
            threads=1,
            progress_s=1e9,
            self_test=True,
        )
    )
    try:
        reply = None
        while not isinstance(reply, Trained):
            event = events.get(timeout=60)
            assert isinstance(event, TrainerSaid), event
            reply = event.reply
    finally:
        link.end()
    assert reply.torch_loaded is False
    assert reply.steps == 6
    assert np.isfinite(reply.loss)
    assert (tmp_path / "update").stat().st_size == reply.encoded_size


def _order(manifest: ArtifactManifest, weights_bytes: int) -> WorkOrder:
    return WorkOrder(
        assignment_id=assignment_id("fed", 0, "dev-1", 0),
        federation="fed",
        device="dev-1",
        round=0,
        attempt=0,
        artifact=BlobRef("0" * 64, 1, "raw", 1),
        weights=BlobRef("1" * 64, weights_bytes, "raw", weights_bytes),
        schedule=Schedule(epochs=2),
        batch=6,
        last_batch="drop",
        data_seed=1,
        hyper=gate_hyper(msgspec.convert(manifest.build["step"], type(step()))),
        upload=tuple(t.name for t in manifest.specs("parameter", "buffer")),
        threads=1,
    )
