"""A small run's ledger, made with the ledger's own methods: three devices, two rounds, and every kind of trouble once.

Round 0 is repeated (attempt 0 had too few reports), pi-3 refuses, pi-2's update of round 1 is quarantined.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.config.canonical import canonical_toml
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.quarantine import Reliability
from coordinator.ledger.records import Assignment, Measurement
from coordinator.run_file.loading import load_config_text
from edge.contracts.codec import encode_msgpack
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.serving.traffic import Traffic
from profiles.device import DeviceProfile
from tests.builders import train_report
from tests.federation.small_run import config_text

DEVICES = ("pi-1", "pi-2", "pi-3")
LEVELS = {"pi-1": "whole", "pi-2": "rank 4", "pi-3": "rank 4"}
MODEL = "e" * 64
PEAK = 120_000_000
TRAINED = ("fc1.weight", "fc1.bias", "fc2.weight")
FACTORS = ("fc1.u", "fc1.v", "fc1.bias")
CUTS: Mapping[str, dict[str, Any]] = {
    "whole": {},
    "rank 4": {
        "fc1": {"factor": {"form": "linear", "components": [0, 1, 2, 3]}},
        "fc2": {"frozen": True},
    },
}


def assignment(device: str, round_index: int, attempt: int) -> Assignment:
    """Open work of a device, its order whole."""
    level = LEVELS.get(device, "whole")
    key = assignment_id("small", round_index, device, attempt)
    order = WorkOrder(
        assignment_id=key,
        federation="small",
        device=device,
        round=round_index,
        attempt=attempt,
        artifact=BlobRef("a" * 64, 1, "raw", 1),
        weights=BlobRef("b" * 64, 9, "raw", 9),
        schedule=Schedule(epochs=1),
        batch=16,
        last_batch="drop",
        data_seed=1,
        hyper={},
        upload=(*(TRAINED if level == "whole" else FACTORS), "fc1.bias#momentum"),
        peak_bytes=PEAK,
    )
    return Assignment(
        assignment_id=key,
        round=round_index,
        attempt=attempt,
        device=device,
        level=level,
        cut=CUTS[level],
        artifact_digest=("a" if level == "whole" else "c") * 64,
        weights_digest="b" * 64,
        order=encode_msgpack(order),
    )


def begin(ledger: Ledger, round_index: int, attempt: int) -> None:
    """Plan an attempt with all devices; they begin to work."""
    entries = [assignment(device, round_index, attempt) for device in DEVICES]
    ledger.rounds.plan(round_index, attempt, deadline_s=60.0, assignments=entries)
    for state in ("published", "collecting"):
        ledger.rounds.move(round_index, attempt, state)  # type: ignore[arg-type]
    ledger.assignments.accept([entry.assignment_id for entry in entries])


def report(ledger: Ledger, device: str, round_index: int, attempt: int, *, loss: float = 1.5) -> str:
    """The device's update is recorded; its assignment's id."""
    key = assignment_id("small", round_index, device, attempt)
    sent = train_report(key, device, round_index, loss=loss, trainer_peak_bytes=PEAK - 5, supervisor_peak_bytes=7)
    ledger.updates.record(key, update_digest="d" * 64, size=8, report=sent)
    return key


def commit(ledger: Ledger, round_index: int, attempt: int, devices: tuple[str, ...], **metrics: Any) -> None:
    """The round is summed from ``devices`` and committed."""
    ledger.rounds.move(round_index, attempt, "aggregating", participants=devices)
    ledger.blobs.add(MODEL, 5)
    ledger.rounds.move(round_index, attempt, "committed", model_digest=MODEL, metrics=metrics)


def small_ledger(place: Path | str) -> Ledger:
    """The run, still running: round 2 is under way."""
    config = canonical_toml(load_config_text(config_text()))
    ledger = Ledger.create(place, federation="small", config=config, seed=3)
    ledger.led_by("host-1")
    ledger.profiles.freeze(
        DeviceProfile(device=device, budget_bytes=PEAK, board="Raspberry Pi 4", runtimes={"onnxruntime": "1.31"})
        for device in DEVICES
    )
    begin(ledger, 0, 0)
    report(ledger, "pi-1", 0, 0)
    ledger.rounds.move(0, 0, "abandoned", reason="1 reports, 2 needed")
    for device in DEVICES[1:]:
        ledger.assignments.expire(assignment_id("small", 0, device, 0))
    begin(ledger, 0, 1)
    report(ledger, "pi-1", 0, 1)
    report(ledger, "pi-2", 0, 1, loss=2.5)
    refused = assignment_id("small", 0, "pi-3", 1)
    ledger.assignments.move(refused, "refused", code="out-of-memory", reason="peak 130 MB", peak_bytes=PEAK)
    evaluation = {"server": {"accuracy": 0.5, "loss": 2.0}, "rank 4": {"accuracy": 0.25, "loss": 2.5}}
    commit(
        ledger, 0, 1, ("pi-1", "pi-2"), train_loss=2.0, bytes_up=12, bytes_down=10, wall_s=1.5, evaluation=evaluation
    )
    begin(ledger, 1, 0)
    report(ledger, "pi-1", 1, 0)
    kept_out = report(ledger, "pi-2", 1, 0)
    report(ledger, "pi-3", 1, 0)
    ledger.quarantine.add(kept_out, code="norm-outlier", evidence={"rms": 9.0, "median": 1.0})
    ledger.reliabilities.put([Reliability(device="pi-2", score=0.5, quarantined=1, barred_until=4)])
    commit(ledger, 1, 0, ("pi-1", "pi-3"), train_loss=1.5, privacy={"epsilon": 1.25, "delta": 1e-5, "cohort": 3})
    ledger.measurements.add(
        Measurement(
            device="pi-1",
            export_key="key",
            batch=16,
            predicted_peak_bytes=PEAK,
            measured_peak_bytes=PEAK + 2,
            step_ms=1.0,
        )
    )
    ledger.blobs.add("a" * 64, 3)
    ledger.artifacts.add("key", "a" * 64)
    ledger.traffic.add(
        [
            Traffic(device="pi-1", direction="up", scheme="mqtt", payload_bytes=10, wire_bytes=14),
            Traffic(device="pi-2", direction="up", scheme="mqtt", payload_bytes=1, wire_bytes=2),
            Traffic(device="pi-1", direction="down", scheme="https", payload_bytes=30, wire_bytes=31),
        ]
    )
    begin(ledger, 2, 0)
    report(ledger, "pi-1", 2, 0)
    return ledger
