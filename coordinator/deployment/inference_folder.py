"""The final model of a run as a folder that devices predict with, held against torch before it exists."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from coordinator.config.run_config import RunConfig
from coordinator.data.inputs import prepare_inputs
from coordinator.deployment.model_files import no_int8, write_model
from coordinator.exporting.cut_exporter import CutExporter, class_names, dense_module, run_input_spec
from coordinator.exporting.inference_program import inference_program
from coordinator.exporting.run_data import load_run_data
from coordinator.rounds.evaluators import run_evaluator
from coordinator.rounds.task_evaluation import TaskEvaluator
from coordinator.run_file.checks import method_of_run
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError, ParityError
from edge.contracts.inference import MANIFEST_NAME, InferenceManifest
from edge.contracts.manifest import ArtifactFile
from edge.contracts.tensor_file import encode_tensors
from edge.inference.predictor import Predictor
from edge.runtimes import DEFAULT, RUNTIMES, traits_of
from edge.system.atomic_files import write_whole

if TYPE_CHECKING:
    import numpy as np

Precision = Literal["float32", "int8"]
TOLERANCE = 1e-4
"""Largest difference of a float32 model's logit from torch's, relative to the largest of torch's."""
CALIBRATION_EXAMPLES = 512
"""Training examples whose activations give the ranges of an int8 model's."""


def deploy(
    config: RunConfig,
    state: State,
    out: Path,
    *,
    format: str = "",
    precision: Precision = "float32",
    max_drop: float,
    is_for_fleet: bool = False,
) -> InferenceManifest:
    """Write the model of ``state`` into the new folder ``out``; what it is, and what was measured of it.

    Every held-out example goes through the file as a device would put it through: :class:`Predictor`.

    Args:
        format: suffix of the model's file, of :func:`formats`; the first of them unless given.
        is_for_fleet: devices that took part are sent it, with their own layers in their stores.
        max_drop: how much lower the accuracy of an int8 model may be than torch's, 0 to 1.

    Raises:
        ConfigError: ``out`` is not empty, a format that is unknown, cannot be written here or has no int8, personal
            layers, clusters, or a model that is scored with each batch's statistics.
        ParityError: the file disagrees with torch, or its accuracy is too low.
    """
    runtime = _runtime(format)
    kept = config.personal.of(sorted(state.tensors))
    if kept and is_for_fleet and (runtime != DEFAULT or precision != "float32"):
        raise ConfigError(
            [
                f"$.personal.layers: '{kept[0]}' and {len(kept) - 1} more are each device's own, and they take their "
                "places in the file in float32 as onnx alone; deploy it so"
            ]
        )
    if kept and not is_for_fleet:
        raise ConfigError(
            [
                f"$.personal.layers: '{kept[0]}' and {len(kept) - 1} more stay on the devices, and nobody trained "
                "those here; each device has its own model: send it there with --fleet"
            ]
        )
    if config.task.name and precision == "int8":
        raise ConfigError(
            [f"--int8: what it costs is held by accuracy, which task '{config.task.name}' may not have; use float32"]
        )
    if config.clusters.layers:
        raise ConfigError(
            [
                f"$.clusters: each of {', '.join(config.clusters.tags)} has its own model, final-TAG.safetensors, and "
                "this would be the mean of them; deploy a run without clusters"
            ]
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError([f"--out: {out} is there already and is not an empty folder; name a new one"])
    submodel = method_of_run(config, dense_module(config)).eval_models(state)["server"]
    program = inference_program(submodel, config.evaluation.norm)
    if program.norm == "batch":
        raise ConfigError(
            [
                '$.evaluation.norm: "batch" gives a model whose answer depends on which examples come together; '
                'run with "static" or "running" to deploy it'
            ]
        )
    if precision == "int8" and (reason := no_int8(runtime)):
        raise ConfigError([f"--int8: {reason}; deploy it in float32, or as onnx"])
    dataset = load_run_data(config)
    if precision == "int8" and not len(dataset.x_train):
        raise ConfigError(
            [
                "$.data.source: int8 takes its ranges from training examples, and this run has none here; "
                "deploy it in float32, or name a source"
            ]
        )
    spec = run_input_spec(config)
    evaluator = run_evaluator(config, dataset.x_test, dataset.y_test)
    expected = evaluator.predictions(submodel) if isinstance(evaluator, TaskEvaluator) else evaluator.logits(submodel)
    with staged(out) as folder:
        path = folder / f"model.{traits_of(runtime).inference}"
        calibration = prepare_inputs(dataset.x_train[:CALIBRATION_EXAMPLES], spec)
        written = write_model(CutExporter(config), submodel, program, runtime, path, precision, calibration)
        data = path.read_bytes()
        manifest = InferenceManifest(
            federation=config.federation.name,
            rounds=state.round,
            model=config.model.build,
            runtime=runtime,
            minimum_runtime_version=written.minimum_runtime_version,
            output=written.output or msgspec.UNSET,
            personal=kept or msgspec.UNSET,
            precision=precision,
            file=ArtifactFile(path.name, hashlib.sha256(data).hexdigest(), len(data)),
            input=msgspec.structs.replace(spec, augment=()),
            classes=class_names(config),
            examples=len(dataset.y_test),
            task=config.task.name or msgspec.UNSET,
            accuracy=0.0,
            torch_accuracy=0.0,
            agreement=0.0,
        )
        write_whole(folder / MANIFEST_NAME, manifest.to_bytes())
        own = None
        if kept:  # no device's: what the coordinator has in their place is held against torch all the same
            own = path.with_name("own")
            own.write_bytes(encode_tensors({name: state.tensors[name] for name in kept}))
        held_out = dataset.x_test, dataset.y_test
        manifest = _measured(manifest, folder, *held_out, expected, max_drop, own=own)
        if own is not None:
            own.unlink()
        write_whole(folder / MANIFEST_NAME, manifest.to_bytes())
    return manifest


def formats() -> list[str]:
    """Suffixes of the files that a runtime of this release predicts with."""
    return [traits_of(name).inference for name in RUNTIMES if traits_of(name).inference]


def _runtime(format: str) -> str:
    for name in RUNTIMES:
        if traits_of(name).inference and format in ("", traits_of(name).inference):
            return name
    raise ConfigError([f"--format: '{format}' is not known; known: {', '.join(formats())}"])


def _measured(
    manifest: InferenceManifest,
    folder: Path,
    x: np.ndarray,
    y: np.ndarray,
    expected: np.ndarray,
    max_drop: float,
    *,
    own: Path | None = None,
) -> InferenceManifest:
    """The manifest with the figures of the model in ``folder``.

    Raises:
        ParityError: it is too far from ``expected``, torch's logits.
    """
    import numpy as np

    found = Predictor(folder, own=own).logits(x)
    error = float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-12))
    if manifest.task:
        manifest = msgspec.structs.replace(manifest, max_error=error)
    else:
        predicted, wanted = found.argmax(1), expected.argmax(1)
        manifest = msgspec.structs.replace(
            manifest,
            accuracy=float((predicted == y).mean()),
            torch_accuracy=float((wanted == y).mean()),
            agreement=float((predicted == wanted).mean()),
        )
    if manifest.precision == "float32":
        if not error <= TOLERANCE:
            raise ParityError(
                f"deploy: logits of {manifest.file.name} differ from torch's by {error:.2e} of the largest, "
                f"{TOLERANCE:g} allowed; report it with the model"
            )
    elif not manifest.torch_accuracy - manifest.accuracy <= max_drop:
        raise ParityError(
            f"deploy: in {manifest.precision} the accuracy on {manifest.examples} held-out examples is "
            f"{manifest.accuracy:.4f}, torch's is {manifest.torch_accuracy:.4f}, a drop of {max_drop:g} is allowed; "
            "deploy it in float32, or allow more with --max-drop"
        )
    return manifest


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that takes its name when nothing was raised."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield folder
        if out.is_dir():
            out.rmdir()
        folder.chmod(0o755)
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
