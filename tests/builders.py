"""What tests of several rooms build: a device's report of its training."""

from __future__ import annotations

from typing import Any

from edge.contracts.plan import BlobRef
from edge.contracts.report import TrainReport


def train_report(assignment_id: str, device: str, round_index: int, **others: Any) -> TrainReport:
    """A report that is in order; fields that a test looks at are its ``others``."""
    fields: dict[str, Any] = {
        "assignment_id": assignment_id,
        "device": device,
        "round": round_index,
        "num_examples": 10,
        "steps": 2,
        "loss": 1.5,
        "metrics": {},
        "step_ms_p50": 1.0,
        "step_ms_p95": 2.0,
        "trainer_peak_bytes": 3,
        "supervisor_peak_bytes": 4,
        "trainer_idle_bytes": 2,
        "budget_bytes": 100,
        "over_budget": False,
        "torch_loaded": False,
        "runtime": "onnxruntime",
        "bytes_down": 5,
        "bytes_up": 6,
        "update": BlobRef(digest="d" * 64, size=8, encoded_size=8),
        "wall_s": 0.5,
    }
    return TrainReport(**fields | others)
