"""A map of one setting with round figures, and a run that is like it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coordinator.advice.features import Population
from coordinator.advice.recorded import SCHEMA, AdviceMap, Course, Features, Setting
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config

FILES = Path(__file__).parents[3] / "benchmarks" / "advice"

FEATURES = Features(
    input=(64,),
    convolutional=False,
    classes=10,
    parameters=5_002,
    devices=8,
    participants=8,
    examples=150.0,
    skew=0.4,
    steps=10,
)
DEVICES = Population(FEATURES, most_steps=20, mean_steps=10.0)


def course(label: str, method: str, options: dict[str, object], *seeds: list[float]) -> Course:
    """A course with the accuracies of ``seeds``."""
    accuracy = {str(seed): values for seed, values in enumerate(seeds, 1)}
    rounds = list(range(1, 1 + max(len(values) for values in seeds)))
    return Course(label=label, method=method, options=options, rounds=rounds, accuracy=accuracy)


SETTING = Setting(
    name="small",
    file="benchmarks/advice/digits.toml",
    source="by hand",
    features=FEATURES,
    courses=(
        course("fedavg", "fedavg", {}, [0.5, 0.9, 0.95], [0.6, 0.8, 0.95], [0.4, 0.85, 0.95]),
        course("small_model 0.5", "small_model", {"levels": [0.5]}, *[[0.4, 0.6, 0.9]] * 3),
        course("small_model 0.25", "small_model", {"levels": [0.25]}, *[[0.2, 0.3, 0.4]] * 3),
        course("prism 2", "prism", {"levels": [2.0]}, *[[0.2, 0.3, 0.4]] * 3),
    ),
)
MAP = AdviceMap(schema=SCHEMA, settings=(SETTING,))


def run(hidden: int = 64) -> RunConfig:
    """Digits with a small multi-layer perceptron under FedAvg, batch 16."""
    config = load_config(FILES / "digits.toml")
    model = msgspec.structs.replace(config.model, options={"hidden": [hidden]})
    return msgspec.structs.replace(config, model=model)
