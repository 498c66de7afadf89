"""``python -m tests.chaos``: runs seeds and prints what came of them; the last line is the counts."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.chaos.campaign import Campaign


def main() -> int:
    """Exit status 0 when nothing was lost, duplicated or different, and every run came to its end."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seeds", default="1-200", help="seeds and ranges: '1 2 3', '1-200'")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--keep", default="", help="folder for the files of failing seeds; made if missing")
    parser.add_argument("--show", action="store_true", help="print the schedules of the seeds and run nothing")
    chosen = parser.parse_args()
    # Ended from outside, it ends its children and removes what it made, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    seeds = [seed for word in chosen.seeds.replace(",", " ").split() for seed in _range(word)]
    return Campaign(seeds, jobs=max(1, chosen.jobs), keep=chosen.keep).run(show_only=chosen.show)


def _range(word: str) -> range:
    first, _, last = word.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
