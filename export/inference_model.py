"""The global model as a plain ONNX inference model: the eval program with its weights put in, input to logits.

This is what a user deploys. It is made from the same ``eval`` program the devices hold, so its numbers are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import PlanError
from edge.contracts.manifest import ArtifactManifest

if TYPE_CHECKING:
    import numpy as np

INPUT = "input"


def write_inference_model(
    artifact_dir: Path, manifest: ArtifactManifest, tensors: Mapping[str, np.ndarray], out: Path
) -> None:
    """Write ``out``: the artifact's eval program with ``tensors`` as initializers; from ``input`` to ``logits``.

    Raises:
        PlanError: a tensor the program needs is missing or has another shape.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper
    from onnx.utils import Extractor

    program = manifest.program("eval")
    logits = [o.name for o in program.outputs if o.tensor == "logits"]
    inputs = [s.name for s in manifest.specs("input") if s.name in program.inputs and s.name == INPUT]
    if len(logits) != 1 or len(inputs) != 1:
        raise PlanError(f"eval program has inputs {inputs} and logits {logits}; one of each expected, export it again")
    model = onnx.load(str(artifact_dir / program.file))
    for name in program.inputs:
        spec = manifest.tensor(name)
        if spec.role == "label_mask":
            # A deployed model knows all classes.
            ones = np.ones([int(size) for size in spec.shape], spec.dtype)
            model.graph.initializer.append(numpy_helper.from_array(ones, name))
            continue
        if spec.role not in ("parameter", "frozen", "buffer"):
            continue
        if name not in tensors or tuple(tensors[name].shape) != spec.shape:
            got = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise PlanError(f"inference model: tensor '{name}' is {got}, the program expects {spec.shape}; re-export")
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(tensors[name]), name))
    weights = {i.name for i in model.graph.initializer}
    kept = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    try:
        pruned = Extractor(model).extract_model(inputs, logits)
    except ValueError as error:  # of a task that predicts from more than x
        raise PlanError(f"inference model: {error}; only a prediction from '{INPUT}' alone is a model") from error
    onnx.checker.check_model(pruned)
    onnx.save(pruned, str(out))


def run_inference_model(path: Path, inputs: np.ndarray, batch: int) -> np.ndarray:
    """Logits [N, classes] of ``inputs`` [N, ...] by ONNX Runtime, ``batch`` at a time, in order."""
    import numpy as np
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: inputs[i : i + batch]})[0] for i in range(0, len(inputs), batch)])
