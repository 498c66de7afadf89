"""``python -m tests.fuzz.coverage_guided --runs 100000``: bytes that reach new branches of an agent, found by atheris.

One line of JSON at the end; status 1 when anything got through, atheris' own and a traceback when anything was raised.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import atheris
import psutil

with atheris.instrument_imports(include=["edge", "profiles"]):
    from tests.fuzz.agent_parsers import AgentUnderFire, seeds

WARM_UP = 2_000
"""Runs before memory is looked at."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    folder = tempfile.TemporaryDirectory()
    corpus = Path(folder.name) / "corpus"
    corpus.mkdir()
    for index, data in enumerate(seeds()):
        (corpus / str(index)).write_bytes(data)
    target, process = AgentUnderFire(Path(folder.name) / "agent"), psutil.Process()
    runs = rss = 0
    started = time.monotonic()

    def run(data: bytes) -> None:
        nonlocal runs, rss
        target.take(data)
        runs += 1
        if runs == min(WARM_UP, chosen.runs // 2):
            rss = process.memory_info().rss
        if runs < chosen.runs:
            return
        found = target.findings()
        outcome = {
            "runs": runs,
            "seconds": round(time.monotonic() - started, 1),
            "findings": found,
            "rss_growth": process.memory_info().rss - rss,
            "answers": dict(target.transport.kinds),
            "inputs_kept": len(list(corpus.iterdir())),
        }
        print(json.dumps(outcome), flush=True)
        folder.cleanup()
        os._exit(bool(found))  # the fuzzer would end the process itself, with words of its own

    options = ["-max_len=8192", f"-seed={chosen.seed}", f"-runs={2 * chosen.runs}", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
