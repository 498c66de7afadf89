"""Synchronous rounds beside buffered versions, with one of four devices ten times slower: seconds to an accuracy.

    python -m benchmarks.buffered_rounds [--accuracy 0.97] [--share 0.3] [--runs 3]

Real agents on this machine, each held to a share of one core by its control group, the last one to a tenth of that.
Time runs from the first orders to the commit of the first model that reaches the accuracy. One JSON line per run, and
the medians last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "buffered_digits.toml"
EPOCHS = 30
ROUNDS = {"synchronous": 12, "buffered": 40}


def text_of(mode: str, share: float) -> str:
    """The example's run file with a slow device, in ``mode``."""
    text, _, aggregation = EXAMPLE.read_text().partition("[aggregation]")
    head, _, _ = text.partition("[[cohort.local]]")
    for old, new in (
        ("rounds = 20", f"rounds = {ROUNDS[mode]}"),
        ("epochs = 5", f"epochs = {EPOCHS}"),
        ("deadline-s = 60", "deadline-s = 300\njoin-timeout-s = 300"),
        ("min-reports = 1", f"min-reports = {4 if mode == 'synchronous' else 1}"),
    ):
        assert old in head
        head = head.replace(old, new)
    groups = "".join(
        f"[[cohort.local]]\ncount = {n}\ncpu-share = {s:g}\nthreads = 1\n" for n, s in ((3, share), (1, share / 10))
    )
    return head + groups + (f"[aggregation]{aggregation}" if mode == "buffered" else "")


def measure(mode: str, share: float, accuracy: float) -> dict[str, Any]:
    """One run: seconds to ``accuracy`` (null when it was never reached), and of the whole."""
    began: list[float] = []
    committed: list[float] = []

    def on_point(point: str) -> None:
        if point == "published" and not began:
            began.append(time.monotonic())
        if point == "committed":
            committed.append(time.monotonic())

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        start_run(load_config_text(text_of(mode, share)), run_dir, RunOptions(quiet=True, on_point=on_point))
        with Ledger.open(run_dir / "ledger.sqlite") as ledger:
            rounds = [entry.metrics for entry in ledger.rounds.all() if entry.state == "committed"]
    scores = [metrics["evaluation"]["server"]["accuracy"] for metrics in rounds]
    reached = next((i for i, score in enumerate(scores) if score >= accuracy), None)
    return {
        "mode": mode,
        "seconds_to_accuracy": None if reached is None else round(committed[reached] - began[0], 1),
        "rounds_to_accuracy": None if reached is None else reached + 1,
        "seconds": round(committed[-1] - began[0], 1),
        "rounds": len(scores),
        "final_accuracy": round(scores[-1], 4),
        "staleness": max(int(age) for m in rounds for age in m.get("staleness", {"0": 1})),
    }


def main() -> None:
    """Both modes in turn, and their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", type=float, default=0.97)
    parser.add_argument("--share", type=float, default=0.3, help="of one core, of an ordinary device")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {mode: [] for mode in ROUNDS}
    for _ in range(options.runs):
        for mode in ROUNDS:
            found = measure(mode, options.share, options.accuracy)
            print(json.dumps(found), flush=True)
            seconds[mode].append(found["seconds_to_accuracy"] or float("inf"))
    medians = {mode: statistics.median(values) for mode, values in seconds.items()}
    print(json.dumps({"accuracy": options.accuracy, "median_seconds_to_accuracy": medians}))


if __name__ == "__main__":
    main()
