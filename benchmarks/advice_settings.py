"""What the map behind ``apportion advise`` is made of: settings, those held out of it, candidates, and runs on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "benchmarks" / "advice"
RECORDED = ("activities", "digits", "mnist", "cifar10")
"""Settings as a federation of their data has them."""
SETTINGS = (*RECORDED, *(f"{name}-two" for name in RECORDED[:3]), "activities-by-class", "mnist-by-class")
"""With them the same with two devices in a round, and dealt by class."""
SEEDS = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Candidate:
    """A method at one level, which all devices hold.

    Attributes:
        options: of ``[method]``; ``norm`` is added where the setting's file has one.
        model: label of the evaluated model that stands for it.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "server"


def _at(method: str, level: float, **options: Any) -> Candidate:
    more = {key.replace("_", "-"): value for key, value in options.items()}
    return Candidate(f"{method} {level:g}", method, {"levels": [level], **more})


CANDIDATES = (
    Candidate("fedavg", "fedavg"),
    _at("small_model", 0.5),
    _at("small_model", 0.25),
    _at("fedhm", 8),
    _at("prism", 0.2, kappa=4.0),
    _at("fedrolex", 0.5),
    Candidate("slt 0.25", "slt", {"levels": [0.25]}, "step"),
    _at("fedhm", 4),
    _at("federated_dropout", 0.5),
    _at("orthdrop", 0.2),
)


@dataclass(frozen=True)
class Held:
    """A setting that is not in the map: a recorded one with another population, data or model.

    Attributes:
        target: accuracy, written down before it was run.
        seeds: that no run had before advice was as it is now.
        budget_mb, link_mb_s: what every device has.
        changes: table -> keys of the run file that differ; ``devices`` is the number of devices.
    """

    name: str
    file: str
    target: float
    budget_mb: float
    link_mb_s: float
    devices: int
    changes: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...] = tuple(range(21, 29))


_BETWEEN_SEEDS = tuple(range(51, 59))
"""Of settings between two recorded ones: those before, 31 to 38 and 41 to 48, showed what was wrong with the map."""

HELD = (
    # Devices in a round between those of two recorded settings.
    Held("activities, 3 a round", "activities", 0.60, 96, 1.0, 18, {"cohort": {"size": 3}}, _BETWEEN_SEEDS),
    Held("mnist, 3 a round", "mnist", 0.75, 96, 1.0, 40, {"cohort": {"size": 3}}, _BETWEEN_SEEDS),
    Held("digits, 4 a round", "digits", 0.85, 128, 1.0, 8, {"cohort": {"size": 4}}, _BETWEEN_SEEDS),
    # Twenty devices for eight, eight in a round, classes drawn less unevenly, a smaller model. In 20 rounds
    # no method got there, so there are 60.
    Held(
        "digits, 20 devices",
        "digits",
        0.85,
        128,
        0.1,
        20,
        {
            "data": {"alpha": 1.0},
            "model": {"options": {"hidden": [96, 96]}},
            "cohort": {"size": 8},
            "federation": {"rounds": 60},
        },
    ),
    # Other writers' number, dealt by class and not by writer.
    Held(
        "mnist, 20 devices by class",
        "mnist",
        0.85,
        256,
        10.0,
        20,
        {
            "data": {"partition": "dirichlet-equal", "alpha": 0.5, "devices": 500},
            "cohort": {"size": 8},
            "federation": {"rounds": 20},
        },
    ),
)


def setting_config(name: str, seed: int) -> RunConfig:
    """The run of a recorded setting, with its file's method."""
    return _seeded(load_config(FILES / f"{name}.toml"), seed)


def held_config(held: Held, seed: int | None = None) -> RunConfig:
    """The run of a held setting, with its file's method; by default with the first of its seeds."""
    config = _seeded(load_config(FILES / f"{held.file}.toml"), held.seeds[0] if seed is None else seed)
    for table, changes in held.changes.items():
        config = msgspec.structs.replace(config, **{table: msgspec.structs.replace(getattr(config, table), **changes)})
    group = msgspec.structs.replace(config.cohort.local[0], count=held.devices)
    return msgspec.structs.replace(config, cohort=msgspec.structs.replace(config.cohort, local=(group,)))


def with_candidate(config: RunConfig, candidate: Candidate) -> RunConfig:
    """``config`` with the candidate's method."""
    kept = {key: value for key, value in config.method.options.items() if key == "norm"}
    options = {**kept, **candidate.options}
    if candidate.method == "slt":
        options["rounds"] = config.federation.rounds
    method = msgspec.structs.replace(config.method, name=candidate.method, options=options)
    return msgspec.structs.replace(config, method=method)


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return msgspec.structs.replace(config, federation=msgspec.structs.replace(config.federation, seed=seed))


def read_lines(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The runs that are there, by setting, label and seed; a last line that was cut off is left out."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[entry["setting"], entry["label"], entry["seed"]] = entry
    return found
