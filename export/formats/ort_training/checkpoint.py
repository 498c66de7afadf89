"""Checkpoints: the artifact's own, which names parameters and holds no values, and one with a round's weights.

``python -m export.formats.ort_training.checkpoint ARTIFACT WEIGHTS OUT`` writes the latter, for programs in other
languages: C and Swift can also fill the artifact's own from a buffer, Java cannot.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import onnx

from edge.contracts.tensor_file import decode_tensors
from edge.contracts.tensors import TensorSpec
from edge.training.artifact_folder import read_artifact_folder
from export.formats.ort_training.child import MODEL, Checkpoint
from export.formats.ort_training.environment import RuntimeEnvironment


def checkpoint_request(training: onnx.ModelProto, tensors: Iterable[TensorSpec]) -> Checkpoint:
    """What the training model takes besides its batch: parameters with a gradient buffer, and all others."""
    taken = {value.name for value in training.graph.input}
    roles = ("parameter", "frozen", "buffer", "teacher")
    held = {t.name: tuple(int(s) for s in t.shape) for t in tensors if t.role in roles}
    trained = {n: s for n, s in held.items() if f"{n}_grad.accumulation.buffer" in taken}
    return Checkpoint(trained, {n: s for n, s in held.items() if n in taken and n not in trained})


def write_checkpoint(artifact: Path, weights: Path, out: Path) -> None:
    """Write ``out``: a complete checkpoint of the artifact's parameters with the values in ``weights`` (safetensors).

    Raises:
        ConfigError: no artifact there, or the runtime's environment is not.
        KeyError: the weights lack a parameter.
    """
    manifest, files = read_artifact_folder(artifact)
    request = checkpoint_request(onnx.load(files["training_model.onnx"]), manifest.tensors)
    values = decode_tensors(weights.read_bytes(), where=weights.name)
    with RuntimeEnvironment() as environment:
        answer = environment.ask(request, {name: values[name] for name in (*request.trained, *request.fixed)})
    out.write_bytes(answer[MODEL].tobytes())


if __name__ == "__main__":
    write_checkpoint(*map(Path, sys.argv[1:4]))
