"""A small federation for tests: three agent processes, a narrow MLP under FedHM, three rounds on digits.

Run as a program it starts or resumes a run and ends itself with SIGKILL at a named point, as a crash would.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from coordinator.cli.assembly import RunOptions, resume_run, start_run
from coordinator.configuration_file import load_config_text

ROUNDS = 3


def config_text(*, broker: str = "embedded", budgets: tuple[float, ...] = (0, 0, 0), extra: str = "") -> str:
    """The run file; one device per budget."""
    groups = "\n".join(f"[[cohort.local]]\ncount = 1\nbudget-mb = {budget}\n" for budget in budgets)
    return f"""
[federation]
name = "small"
seed = 3
rounds = {ROUNDS}

[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [96, 96] }}

[method]
name = "fedhm"
levels = [1, 4, 8]

[training]
epochs = 1
batch = 16
last-batch = "keep"
lr = 0.05
momentum = 0.9
frobenius-lambda = 0.0001

[data]
source = "digits"
partition = "dirichlet"
alpha = 0.5
scale = 0.0625

[evaluation]
every = 0

[cohort]
min-reports = {len(budgets)}
deadline-s = 120

{groups}

[broker]
url = "{broker}"
{extra}
"""


def main(verb: str, run_dir: str, point: str, occurrence: str, broker: str) -> None:
    """``start`` or ``resume`` a run in ``run_dir``; SIGKILL at the ``occurrence``-th passing of ``point``."""
    left = int(occurrence)

    def on_point(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    options = RunOptions(quiet=False, on_point=on_point)
    if verb == "start":
        start_run(load_config_text(config_text(broker=broker)), Path(run_dir), options)
    else:
        resume_run(Path(run_dir), options)


if __name__ == "__main__":
    main(*sys.argv[1:])
