"""The file of a deployed model, in the format of the runtime that is to run it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.exporting.cut_exporter import CutExporter
from coordinator.submodels.values import DeviceProgram, Submodel
from edge.contracts.errors import ConfigError
from edge.runtimes import DEFAULT, traits_of

if TYPE_CHECKING:
    import numpy as np

    from export.formats import WritesInference


@dataclass(frozen=True)
class WrittenModel:
    """What a device must know of the file.

    Attributes:
        output: shape of one example's logits; empty where its runtime tells.
    """

    minimum_runtime_version: str
    output: tuple[int, ...] = ()


def no_int8(runtime: str) -> str:
    """Why models for ``runtime`` are not written in int8, as a clause; empty where they are."""
    suffix = traits_of(runtime).inference
    return "" if runtime == DEFAULT else f"a .{suffix} file holds float32, its kernels have no other"


def write_model(
    exporter: CutExporter,
    submodel: Submodel,
    program: DeviceProgram,
    runtime: str,
    path: Path,
    precision: str,
    calibration: np.ndarray,
) -> WrittenModel:
    """Write ``submodel`` at ``path``, one file with its weights.

    Args:
        calibration: program inputs [N, ...] that give int8 its ranges.

    Raises:
        ConfigError: the format's tools are not installed; ExportRefused: a layer has no kernel there.
    """
    writer = _writer(runtime)
    if writer is not None:
        output = writer.write_inference(exporter.module(submodel.cut), exporter.step(program), submodel.tensors, path)
        return WrittenModel(writer.minimum_runtime_version, output)
    from export.inference_model import write_inference_model
    from export.int8_model import write_int8_model

    with tempfile.TemporaryDirectory(prefix="apportion-deploy-") as name:
        artifact = Path(name) / "artifact"
        exported = exporter.export(submodel.cut, program, runtime, artifact)
        whole = path if precision == "float32" else Path(name) / path.name
        write_inference_model(artifact, exported, submodel.tensors, whole)
        if precision == "int8":
            write_int8_model(whole, path, calibration)
    return WrittenModel(exported.minimum_runtime_version)


def _writer(runtime: str) -> WritesInference | None:
    """The format with files of its own for models of ``runtime``; None where they are made from the ONNX programs."""
    from export.formats import WritesInference, format_for

    try:
        found = format_for(runtime)
    except ImportError as error:
        raise ConfigError(
            [f"--format: .{traits_of(runtime).inference} is written with tools that are not here ({error})"],
            hint=traits_of(runtime).install,
        ) from error
    return found if isinstance(found, WritesInference) else None
