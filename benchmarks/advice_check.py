"""What :mod:`benchmarks.advice_map` recorded, as the package's map, as a table, and held against settings not in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.advice_earlier import EARLIER, Earlier
from benchmarks.advice_settings import CANDIDATES, HELD, ROOT, SEEDS, SETTINGS, Held, held_config, read_lines
from benchmarks.advice_settings import setting_config as config_of
from coordinator.advice.features import Population, population
from coordinator.advice.ranking import Advice, By, advise
from coordinator.advice.recorded import PACKAGED, SCHEMA, AdviceMap, Course, Setting, read_map
from coordinator.advice.words import values
from coordinator.config.run_config import RunConfig
from coordinator.reporting.environment import environment
from coordinator.run_file.loading import load_config
from coordinator.simulation.device_speed import device_speed

BUDGETS_MB = (48, 64, 96, 128, 256, 512)
LINKS_MB_S = (0.1, 1.0, 10.0)


def pack(folder: Path) -> None:
    """Write the package's map from the runs in ``folder``; settings without any run stay as they are in it."""
    runs, before = read_lines(folder / "runs.jsonl"), {setting.name: setting for setting in read_map().settings}
    found = (_setting(name, runs) or before.get(name) for name in SETTINGS)
    settings = (*(s for s in found if s is not None), *(_earlier_setting(earlier) for earlier in EARLIER))
    made = AdviceMap(schema=SCHEMA, settings=settings)
    PACKAGED.write_text("\n".join(_lines(made)) + "\n", encoding="utf-8")
    for setting in settings:
        print(f"{setting.name}: {len(setting.courses)} courses, {len(setting.refused)} refused")


def _lines(made: AdviceMap) -> Iterator[str]:
    """The map as JSON, a line for each setting and each course."""
    yield f'{{"schema": {json.dumps(made.schema)}, "settings": ['
    for place, setting in enumerate(made.settings):
        fields = msgspec.to_builtins(setting)
        courses = ",\n".join(json.dumps(course) for course in fields.pop("courses"))
        yield f'{json.dumps(fields)[:-1]}, "courses": [\n{courses}\n]}}' + "," * (place + 1 < len(made.settings))
    yield "]}"


def _setting(name: str, runs: dict[tuple[str, str, int], dict[str, Any]]) -> Setting | None:
    courses: list[Course] = []
    refused: dict[str, str] = {}
    for candidate in CANDIDATES:
        found = [runs[name, candidate.label, seed] for seed in SEEDS if (name, candidate.label, seed) in runs]
        done = {str(entry["seed"]): entry["accuracy"] for entry in found if "accuracy" in entry}
        if done:
            courses.append(
                Course(
                    label=candidate.label,
                    method=candidate.method,
                    options=dict(candidate.options),
                    rounds=list(range(1, 1 + max(len(values) for values in done.values()))),
                    accuracy=done,
                )
            )
        if why := [entry["refused"] for entry in found if "refused" in entry]:
            refused[candidate.label] = why[0]
    if not courses:
        return None
    features = population(config_of(name, SEEDS[0])).features
    date = max(entry["date"] for (setting, _, _), entry in runs.items() if setting == name)
    return Setting(
        name=name,
        file=f"benchmarks/advice/{name}.toml",
        source=f"python -m benchmarks.advice_map, {date}, torch {_torch()}, one thread, {environment()['processor']}",
        features=features,
        courses=tuple(courses),
        refused=refused,
    )


def _earlier_setting(earlier: Earlier) -> Setting:
    courses = (
        Course(
            label=label,
            method=method,
            options=dict(options),
            rounds=list(rounds),
            accuracy={str(seed): [round(v / 100, 4) for v in percent] for seed, percent in accuracy.items()},
        )
        for label, (method, options, rounds, accuracy) in earlier.courses.items()
    )
    return Setting(
        name=earlier.name,
        file=f"examples/{earlier.file}",
        source=earlier.source,
        features=population(load_config(ROOT / "examples" / earlier.file)).features,
        courses=tuple(courses),
    )


def _torch() -> str:
    import torch

    return str(torch.__version__).partition("+")[0]


def table() -> Iterator[str]:
    """The map's settings at every budget and link, as rows of a page: what is first in time, by the recorded target."""
    found = read_map()
    for setting in found.settings:
        config = load_config(ROOT / setting.file)
        devices = population(config)
        target = 0.95 * setting.best()
        yield ""
        yield f"**{setting.name}**, target {target:.3f}"
        yield ""
        yield "| budget | 0.1 MB/s | 1 MB/s | 10 MB/s | fewest bytes |"
        yield "|---|---|---|---|---|"
        for budget in BUDGETS_MB:
            cells = [_cell(_advice(config, devices, found, budget, link, target), "time") for link in LINKS_MB_S]
            cells.append(_cell(_advice(config, devices, found, budget, 1.0, target, "bytes"), "bytes"))
            yield f"| {budget} MB | {' | '.join(cells)} |"


def _advice(
    config: RunConfig,
    devices: Population,
    found: AdviceMap,
    budget: float,
    link: float,
    target: float,
    by: By = "time",
) -> Advice:
    speed = replace(device_speed(config.simulation), link_mbit=8 * link)
    return advise(config, devices, found, speed=speed, budget_mb=budget, target=target, by=by)


def _cell(advice: Advice, by: By) -> str:
    if advice.choice is None:
        large = all(option.outcome in ("too-large", "refused") for option in advice.options)
        return "nothing fits" if large else "not reached"
    cost = advice.choice.cost(by)
    return f"{advice.choice.course.label}, " + (f"{cost:,.0f} s" if by == "time" else f"{cost / 1e6:,.0f} MB")


@dataclass(frozen=True)
class Outcome:
    """Advice for a held setting, and what its own runs say.

    Attributes:
        costs: label -> cost to the target by the setting's own runs, of those that fit and reached it.
    """

    advice: Advice
    costs: dict[str, float]

    def ratio(self) -> float:
        """The chosen method's cost over the best one's; infinite where it was not reached, or nothing was chosen."""
        choice = self.advice.choice
        if choice is None or not self.costs:
            return float("inf")
        return self.costs.get(choice.course.label, float("inf")) / min(self.costs.values())


def outcome(held: Held, runs: dict[tuple[str, str, int], dict[str, Any]], by: By) -> Outcome:
    """What advise says of ``held`` without its runs, and with them."""
    config, found = held_config(held), read_map()
    devices = population(config)
    told = _advice(config, devices, found, held.budget_mb, held.link_mb_s, held.target, by)
    known: dict[str, dict[str, list[float]]] = {}
    for (name, label, seed), entry in runs.items():
        if name == held.name and seed in held.seeds and "accuracy" in entry:
            known.setdefault(label, {})[str(seed)] = entry["accuracy"]
    courses = [
        Course(
            label=c.label,
            method=c.method,
            options=dict(c.options),
            rounds=list(range(1, 1 + max(map(len, known[c.label].values())))),
            accuracy=known[c.label],
        )
        for c in CANDIDATES
        if c.label in known
    ]
    own = Setting(name=held.name, file="", source="", features=devices.features, courses=tuple(courses))
    alone = msgspec.structs.replace(found, settings=(own,))
    actual = _advice(config, devices, alone, held.budget_mb, held.link_mb_s, held.target, by)
    return Outcome(told, {o.course.label: o.cost(by) for o in actual.options if o.outcome == "fits"})


def check(folder: Path) -> None:
    """One JSON line for every held setting and each of time and bytes."""
    runs = read_lines(folder / "held.jsonl")
    for held in HELD:
        found_runs = [seed for name, _, seed in runs if name == held.name and seed in held.seeds]
        if not found_runs:
            print(json.dumps({"held": held.name, "runs": 0}))
            continue
        for by in ("time", "bytes"):
            found = outcome(held, runs, by)
            told = values(found.advice)
            print(
                json.dumps(
                    {
                        "held": held.name,
                        "by": by,
                        "target": held.target,
                        "budget_mb": held.budget_mb,
                        "link_mb_s": held.link_mb_s,
                        "runs": len(found_runs),
                        "setting": told["setting"],
                        "chosen": told["choice"] and told["choice"]["label"],
                        "ratio": round(found.ratio(), 3),
                        "costs": {k: round(v, 1) for k, v in sorted(found.costs.items(), key=lambda item: item[1])},
                        "thin": told["thin"],
                    }
                ),
                flush=True,
            )
