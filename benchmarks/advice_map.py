"""The map behind ``apportion advise``: every method and level of it on every setting, one simulation after the other.

    python -m benchmarks.advice_map runs/advice            # all runs; goes on where it was stopped
    python -m benchmarks.advice_map runs/advice --held     # the settings that are held out of the map
    python -m benchmarks.advice_map runs/advice --pack     # coordinator/advice/map.json from the runs that are there
    python -m benchmarks.advice_map runs/advice --table    # what it says at every budget and link
    python -m benchmarks.advice_map runs/advice --check    # what advise says of the held settings, and what was best

The run files are ``benchmarks/advice/*.toml``. Runs with a seed come before those with the next. A run is a line of
``<folder>/runs.jsonl`` or ``<folder>/held.jsonl``: setting, method, level, seed, and accuracy by round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.orderings import measure
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config
from edge.contracts.errors import ApportionError

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "benchmarks" / "advice"
SETTINGS = ("activities", "digits", "mnist", "cifar10")
SEEDS = (1, 2, 3)


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


HELD = (
    # Fewer people in a round, another seed.
    Held("activities, 3 a round", "activities", 0.60, 96, 1.0, 18, {"cohort": {"size": 3}}),
    # Twenty devices for eight, eight in a round, classes drawn less unevenly, a smaller model. In the file's 20 rounds
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
        {"data": {"partition": "dirichlet-equal", "alpha": 0.5, "devices": 500}, "cohort": {"size": 8}},
    ),
)
HELD_SEEDS = (11, 12, 13)


def setting_config(name: str, seed: int) -> RunConfig:
    """The run of a recorded setting, with its file's method."""
    return _seeded(load_config(FILES / f"{name}.toml"), seed)


def held_config(held: Held, seed: int = HELD_SEEDS[0]) -> RunConfig:
    """The run of a held setting, with its file's method."""
    config = _seeded(load_config(FILES / f"{held.file}.toml"), seed)
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


def grid(is_held: bool) -> Iterator[tuple[str, RunConfig, Candidate, int]]:
    """All runs: every setting has a method before the next method, and every method a seed before the next seed."""
    if is_held:
        for seed in HELD_SEEDS:
            for candidate in CANDIDATES:
                for held in HELD:
                    yield held.name, held_config(held, seed), candidate, seed
        return
    for seed in SEEDS:
        for candidate in CANDIDATES:
            for name in SETTINGS:
                yield name, setting_config(name, seed), candidate, seed


def run_one(name: str, config: RunConfig, candidate: Candidate, seed: int, folder: Path) -> dict[str, Any]:
    """One line: accuracy by round, and what the simulator counted; the reason where the method refuses the model."""
    entry: dict[str, Any] = {"setting": name, "label": candidate.label, "seed": seed, "date": time.strftime("%Y-%m-%d")}
    run_dir = folder / "now"
    shutil.rmtree(run_dir, ignore_errors=True)
    try:
        result = measure(with_candidate(config, candidate), run_dir, workers=1)
    except ApportionError as error:
        return {**entry, "refused": str(error)[:300]}
    rounds = result["rounds"]
    return {
        **entry,
        "accuracy": [round(line["evaluation"][candidate.model]["accuracy"], 4) for line in rounds],
        "bytes": [line["bytes_up"] + line["bytes_down"] for line in rounds],
        "simulated_s": [round(line["simulated_s"], 3) for line in rounds],
        "wall_s": round(result["wall_s"], 1),
    }


def main() -> None:
    """Run what is missing, pack the map, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--held", action="store_true", help="the held settings' runs")
    parser.add_argument("--only", nargs="*", help="these settings")
    parser.add_argument("--labels", nargs="*", help="these methods and levels, as CANDIDATES names them")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--pack", action="store_true", help="write the package's map from the runs that are there")
    parser.add_argument("--check", action="store_true", help="what advise says of the held settings, as JSON lines")
    parser.add_argument("--table", action="store_true", help="the package's map at every budget and link, on stdout")
    chosen = parser.parse_args()
    if chosen.pack or chosen.check or chosen.table:
        from benchmarks.advice_check import check, pack, table

        if chosen.pack:
            pack(chosen.folder)
        if chosen.table:
            print("\n".join(table()))
        if chosen.check:
            check(chosen.folder)
        return
    import torch

    torch.set_num_threads(1)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    path = chosen.folder / ("held.jsonl" if chosen.held else "runs.jsonl")
    known = read_lines(path)
    for name, config, candidate, seed in grid(chosen.held):
        is_wanted = (not chosen.only or name in chosen.only) and (chosen.held or seed in chosen.seeds)
        is_wanted = is_wanted and (not chosen.labels or candidate.label in chosen.labels)
        if not is_wanted or (name, candidate.label, seed) in known:
            continue
        entry = run_one(name, config, candidate, seed, chosen.folder)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        told = entry.get("refused") or f"{entry['accuracy'][-1]:.4f} after {entry['wall_s']:.0f} s"
        print(f"{name}, {candidate.label}, seed {seed}: {told}", flush=True)


if __name__ == "__main__":
    main()
