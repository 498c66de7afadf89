"""The run file of a load test: one dense model of a wanted size, every device on it, nothing evaluated in between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import BrokerConfig, RunConfig
from coordinator.run_file.loading import load_config_text

FEDERATION = "load"
SMALLEST_MB = 0.001
"""Gives a perceptron of width 3, 1.1 kB."""

PASSWORD_VARIABLE = "APPORTION_LOADTEST_PASSWORD"
_FEATURES, _CLASSES = 64, 10
_MB = 1e6


@dataclass(frozen=True)
class Wanted:
    """What is asked of a load test's federation; the update of a device has about ``update_mb`` MB (10^6 bytes)."""

    rounds: int
    participants: int
    update_mb: float
    deadline_s: float
    join_timeout_s: float


def hidden_width(update_mb: float) -> int:
    """Width h of the perceptron 64-h-h-10 whose float32 parameters have about ``update_mb`` MB; at least 1."""
    linear = _FEATURES + _CLASSES + 2
    values = max(0.0, update_mb * _MB / 4 - _CLASSES)
    return max(1, round((math.sqrt(linear**2 + 4 * values) - linear) / 2))


def model_bytes(update_mb: float) -> int:
    """Bytes of that perceptron's parameters."""
    width = hidden_width(update_mb)
    return 4 * (width * width + width * (_FEATURES + _CLASSES + 2) + _CLASSES)


def adapted(text: str, folder: Path, wanted: Wanted, broker: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """A user's run file for a load test, and the runtimes it allows: model, method and training stay.

    Federation, broker and cohort are the test's, nothing is evaluated in between.

    Raises:
        ConfigError: it cannot be read.
    """
    config = load_config_text(text, folder=folder)
    replaced: RunConfig = msgspec.structs.replace(
        config,
        federation=msgspec.structs.replace(config.federation, name=FEDERATION, rounds=wanted.rounds),
        cohort=msgspec.structs.replace(
            config.cohort,
            size=wanted.participants,
            min_reports=wanted.participants,
            deadline_s=wanted.deadline_s,
            join_timeout_s=wanted.join_timeout_s,
            over_selection=0,
            local=(),
        ),
        evaluation=msgspec.structs.replace(config.evaluation, every=0),
        broker=BrokerConfig(**{key.replace("-", "_"): value for key, value in broker.items()}),  # type: ignore[arg-type]
    )
    return canonical_toml(replaced), config.runtime.names


def run_file(wanted: Wanted, broker: dict[str, str]) -> str:
    """The TOML of the run; ``broker`` holds the keys of its table."""
    width = hidden_width(wanted.update_mb)
    table = "\n".join(f'{key} = "{value}"' for key, value in broker.items())
    return f"""[federation]
name = "{FEDERATION}"
seed = 1
rounds = {wanted.rounds}

[model]
build = "mlp"
input = [{_FEATURES}]
classes = {_CLASSES}
options = {{ hidden = [{width}, {width}] }}

[method]
name = "fedavg"

[training]
epochs = 1
batch = 32
last-batch = "wrap"
lr = 0.1

[data]
source = "coordinator.loadtest.no_data:few_examples"

[evaluation]
every = 0

[cohort]
size = {wanted.participants}
min-reports = {wanted.participants}
deadline-s = {wanted.deadline_s:g}
join-timeout-s = {wanted.join_timeout_s:g}

[broker]
{table}
"""
