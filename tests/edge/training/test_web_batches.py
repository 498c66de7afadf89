"""The batches that the web agent's tests compare theirs with are this agent's: recorded once, held to here."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.tensors import TensorSpec
from edge.training.batches import BatchOrder, Examples
from edge.training.local_data import LocalData
from tests.edge.tiny_artifact import softmax_manifest

RECORDED = Path(__file__).parents[3] / "edge" / "web" / "test" / "data" / "batches.json"
CASES: list[dict[str, Any]] = json.loads(RECORDED.read_text())["cases"]


def _manifest(case: dict[str, Any]) -> ArtifactManifest:
    target = TensorSpec("y", ("batch", *case["target"]["shape"]), case["target"]["dtype"], "target")
    return msgspec.structs.replace(
        ArtifactManifest.from_bytes(softmax_manifest(b"")),
        tensors=(target,),
        input=msgspec.convert(case["input"], InputSpec),
        classes=tuple(case["classes"]),
    )


def _array(found: dict[str, Any]) -> np.ndarray:
    if "names" in found:
        return np.asarray(found["names"])
    data = np.frombuffer(base64.b64decode(found["base64"]), found["dtype"])
    return data.reshape(found["shape"])


def _recorded(values: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"dtype": str(values.dtype), "shape": list(values.shape), "base64": data}


def batches_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """What the agent makes of a case, as it is recorded."""
    examples = Examples(LocalData("fixture", _array(case["x"]), _array(case["y"])), _manifest(case))
    order = BatchOrder(len(examples), case["batch"], case["last_batch"], int(case["data_seed"]))
    made = []
    for number, indices in enumerate(order.batches(case["count"])):
        x, y = examples.batch(indices, order.augment_seed(number))
        made.append({"indices": indices.tolist(), "x": _recorded(x), "y": _recorded(y)})
    return made


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_recorded_batches_are_those_of_this_agent(case: dict[str, Any]) -> None:
    assert batches_of(case) == case["batches"]
