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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.advice_check import check, pack, table
from benchmarks.advice_settings import (
    CANDIDATES,
    HELD,
    SEEDS,
    SETTINGS,
    Candidate,
    held_config,
    read_lines,
    setting_config,
    with_candidate,
)
from benchmarks.orderings import measure
from coordinator.config.run_config import RunConfig
from edge.contracts.errors import ApportionError


def grid(is_held: bool) -> Iterator[tuple[str, RunConfig, Candidate, int]]:
    """All runs: every setting has a method before the next method, and every method a seed before the next seed."""
    if is_held:
        for place in range(max(len(held.seeds) for held in HELD)):
            for candidate in CANDIDATES:
                for held in HELD:
                    if place < len(held.seeds):
                        yield held.name, held_config(held, held.seeds[place]), candidate, held.seeds[place]
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
