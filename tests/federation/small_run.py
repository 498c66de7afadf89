"""A small federation for tests: a narrow factorized MLP under FedHM, three devices, three rounds on digits.

:func:`crash` runs it in a process of its own that ends itself with SIGKILL at a named point, as a crash would.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from coordinator.rounds.crash_points import point_of
from tests.remembered_exports import EXPORTS_VARIABLE

ROUNDS = 3
DEVICES = 3

# The server of forked processes imports what a coordinator needs once; a crash then costs no import.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["coordinator.cli.assembly", "coordinator.cli.results", "export.bundle", "sklearn.datasets"]
)


def config_text(
    *,
    broker: str = 'url = "embedded"',
    rounds: int = ROUNDS,
    local: int = DEVICES,
    size: int = DEVICES,
    min_reports: int | None = None,
    deadline_s: float = 120.0,
    join_timeout_s: float = 60.0,
    evaluation: str = "every = 0",
    runtimes: Sequence[str] = ("onnxruntime",),
) -> str:
    """The run file; ``local`` devices are started by the coordinator, 0 none, and have ``runtimes`` in turn."""
    group = "".join(f'[[cohort.local]]\ncount = 1\nruntime = "{runtimes[i % len(runtimes)]}"\n' for i in range(local))
    return f"""
[federation]
name = "small"
seed = 3
rounds = {rounds}

[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [96, 96] }}

[method]
name = "fedhm"
levels = [4]

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
devices = {size}

[evaluation]
{evaluation}

[cohort]
size = {size}
min-reports = {size if min_reports is None else min_reports}
deadline-s = {deadline_s}
join-timeout-s = {join_timeout_s}
{group}

[runtime]
name = [{", ".join(f'"{name}"' for name in runtimes)}]

[broker]
{broker}
"""


def with_convolutions(text: str) -> str:
    """The run file with a model whose batch norms need a statistics round."""
    for old, new in (
        ('build = "mlp"', 'build = "tests.federation.tiny_convnet:build"'),
        ("input = [64]", "input = [1, 8, 8]"),
        ("options = { hidden = [96, 96] }", ""),
        ('name = "fedhm"\nlevels = [4]', 'name = "fedavg"'),
        ("frobenius-lambda = 0.0001", ""),
        ('source = "digits"', 'source = "tests.federation.tiny_convnet:digit_images"'),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def crash(
    run_dir: Path, point: str, occurrence: int, *, text: str = "", environment: dict[str, str] | None = None
) -> None:
    """Start the run of ``text`` in ``run_dir``, or resume it when empty, until it kills itself at a point.

    Args:
        occurrence: the how manieth passing of ``point``.
    """
    point_of(point)
    environment = (environment or {}) | {EXPORTS_VARIABLE: os.environ[EXPORTS_VARIABLE]}
    process = FORKS.Process(target=_run_until, args=(str(run_dir), point, occurrence, text, environment))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL, f"{point} #{occurrence}: exit code {process.exitcode}"
    process.close()


def _run_until(run_dir: str, point: str, occurrence: int, text: str, environment: dict[str, str]) -> None:
    from coordinator.cli import assembly, open_run
    from coordinator.run_file.loading import load_config_text
    from tests.remembered_exports import remembering_exporter

    os.environ.update(environment)
    open_run.CutExporter = remembering_exporter
    left = occurrence

    def on_point(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    options = open_run.RunOptions(on_point=on_point)
    if text:
        assembly.start_run(load_config_text(text), Path(run_dir), options)
    else:
        assembly.resume_run(Path(run_dir), options)
