"""Runs as values, for pages: one with everything that can go wrong, and copies that differ in a seed."""

from __future__ import annotations

from coordinator.reporting.subject import DeviceFacts, FailedAttempt, RoundFacts, Subject

MB = 2**20

CONFIG = """\
[federation]
name = "kitchen"
seed = {seed}
rounds = 4

[model]
build = "mlp"
input = [64]
classes = ["0", "1"]

[method]
name = "fedhm"
levels = [1, 8]

[data]
source = "digits"
partition = "dirichlet"
alpha = 0.5
devices = 3

[cohort]
size = 3
min-reports = 2
deadline-s = 60.0

[training]
epochs = 1
batch = 16
lr = {lr}
lr-schedule = "constant"

[broker]
url = "mqtt://me:secret@broker.lan"
"""


def one_round(number: int, score: float, **changes: object) -> RoundFacts:
    facts: dict[str, object] = {
        "number": number,
        "reports": 2,
        "loss": 2.0 / number,
        "scores": {"server": {"accuracy": score}, "rank 1/8": {"accuracy": score - 0.05}},
        "bytes_up": 1_000_000,
        "bytes_down": 2_000_000,
        "wall_s": 10.0 + number,
        "planning_s": 1.0,
        "training_s": 8.0,
        "aggregating_s": 1.0 + number,
        "assigned": {"reported": 2, "refused": 1},
    }
    return RoundFacts(**{**facts, **changes})  # type: ignore[arg-type]


def subject(*, seed: int = 1, lr: float = 0.1, gain: float = 0.0, **changes: object) -> Subject:
    """A finished run of four rounds; ``gain`` raises every score."""
    facts: dict[str, object] = {
        "name": "kitchen",
        "folder": f"runs/kitchen-{seed}",
        "is_simulated": False,
        "state": "finished",
        "seed": seed,
        "config_text": CONFIG.format(seed=seed, lr=lr),
        "rounds": tuple(one_round(n, 0.5 + n / 10 + gain) for n in range(1, 5)),
        "devices": (
            DeviceFacts(
                device="pi-1",
                board="Raspberry Pi 4",
                runtime="onnxruntime",
                level="full",
                budget_bytes=200 * MB,
                predicted_peak_bytes=150 * MB,
                measured_peak_bytes=140 * MB,
                step_ms=12.0,
                reports=4,
            ),
            DeviceFacts(
                device="pi-2",
                level="rank 1/8",
                budget_bytes=100 * MB,
                predicted_peak_bytes=90 * MB,
                measured_peak_bytes=110 * MB,
                reports=3,
                over_budget=1,
                problems=("update set aside once (norm-outlier)",),
            ),
            DeviceFacts(device="pi-<3>", budget_bytes=50 * MB),
        ),
        "failed": (FailedAttempt(number=2, attempt=1, why="1 reports, 2 needed"),),
        "quarantined": ((3, "pi-2", "norm-outlier"),),
        "trained_s": 90.0,
        "wire_bytes": {"up": 5_000_000, "down": 9_000_000},
        "digests": {"run file": "ab" * 32},
        "summary": {"accuracy": 0.9 + gain, "wall_s": 50.0, "environment": {"apportion": "1.2.3"}, "exports": 2},
    }
    return Subject(**{**facts, **changes})  # type: ignore[arg-type]
