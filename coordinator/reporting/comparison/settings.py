"""Run files beside each other: which keys differ, and what makes a comparison one of apples and pears."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coordinator.reporting.subject import Subject

ABOUT_THE_PLACE = (
    "broker",
    "store",
    "planner.export-cache",
    "federation.name",
    "federation.seed",
    "cohort.join-timeout-s",
)
"""Keys that say where a run is and not what is trained; runs that differ in these alone are one configuration."""

_FIRST_KEYS = ("model", "method", "data", "task")
"""Tables that a reader wants to see first."""


def settings_of(subject: Subject) -> dict[str, str]:
    """Key -> value of the run file as text: ``training.lr`` -> ``0.1``; without those about the place."""
    found = dict(_flat(subject.config, ""))
    return {key: value for key, value in found.items() if not _is_about_the_place(key)}


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys whose values are not the same in all of ``settings``, models and methods first."""
    keys = {key for values in settings for key in values}
    found = [key for key in keys if len({values.get(key, "") for values in settings}) > 1]
    return sorted(found, key=lambda key: (_place(key), key))


def objections(subjects: Sequence[Subject]) -> list[str]:
    """What makes their scores no fair comparison, a sentence each; empty where nothing does."""
    found = []
    for what, key, why in (
        ("models", "build", "their scores are of different networks"),
        ("tasks", "name", "their scores mean different things"),
    ):
        table = {"models": "model", "tasks": "task"}[what]
        names = list(dict.fromkeys(str(s.table(table).get(key, "")) or "classification" for s in subjects))
        if len(names) > 1:
            found.append(f"They train different {what} ({', '.join(names)}): {why}.")
    data = [{k: v for k, v in s.table("data").items() if k not in ("partition", "alpha", "devices")} for s in subjects]
    if any(table != data[0] for table in data):
        found.append("They read different data: a higher score may only mean easier data.")
    held_out = [(s.table("evaluation").get("data", ""), s.table("evaluation").get("holdout")) for s in subjects]
    if len(set(map(str, held_out))) > 1:
        found.append("They are scored on different held-out data.")
    metrics = list(dict.fromkeys(s.metric for s in subjects))
    if len(metrics) > 1:
        found.append(f"They are about different metrics ({', '.join(metrics)}).")
    if len({s.is_simulated for s in subjects}) > 1:
        found.append("Some are simulations and some ran on devices: compare their scores, not their times.")
    if unfinished := [s.folder for s in subjects if not s.is_finished]:
        found.append(f"Not finished, shown so far: {', '.join(unfinished)}.")
    return found


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _flat(entry, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        for index, entry in enumerate(value):
            yield from _flat(entry, f"{path}[{index}]")
    else:
        yield path, str(value)


def _is_about_the_place(key: str) -> bool:
    return any(key == place or key.startswith(f"{place}.") for place in ABOUT_THE_PLACE)


def _place(key: str) -> int:
    table = key.partition(".")[0]
    return _FIRST_KEYS.index(table) if table in _FIRST_KEYS else len(_FIRST_KEYS)
