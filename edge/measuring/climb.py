"""Climbs a ladder on this device: every rung in a child under a limit, the next runtime's when one was too much.

Results are on the disk as they come (:mod:`edge.measuring.results`); nothing is measured twice unless asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge.contracts.errors import ApportionError, ConfigError, DeviceRefused
from edge.measuring.ladder import Rung
from edge.measuring.results import LadderRow, ResultsFile, row_of
from edge.measuring.step_measurement import measure_steps, runtime_about
from edge.measuring.watch import available_bytes
from edge.runtimes.environments import runtime_python
from edge.system.meter import rss_bytes
from edge.training.artifact_folder import MANIFEST_NAME, read_artifact_folder

MB = 2**20
QUICK_STEPS, QUICK_SECONDS = 10, 2.0
STEPS, SECONDS = 20, 8.0


@dataclass(frozen=True)
class Climb:
    """What is measured, and how.

    Attributes:
        folder: of the ladder.
        threads: numbers of threads, rising; those beyond what a runtime uses are left out.
        ceiling_bytes: most that a measuring process may reach; 0: what the machine has free when a rung begins.
        again: measure what was measured before, too.
    """

    folder: Path
    rungs: tuple[Rung, ...]
    threads: tuple[int, ...]
    is_quick: bool = False
    ceiling_bytes: int = 0
    again: bool = False


def default_threads() -> tuple[int, ...]:
    """One, and all processors that this process may use."""
    return tuple(sorted({1, len(os.sched_getaffinity(0))}))


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """While it is open, SIGTERM and SIGHUP interrupt as SIGINT does, where nobody else handles them.

    A setting that is interrupted is measured again; one whose process was simply gone would count as killed.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    ours: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        ours = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def climb(what: Climb, results: ResultsFile, tell: Callable[[str], None]) -> list[LadderRow]:
    """A row for every setting, in the ladder's order, skipped ones included; ``tell`` gets a line each.

    Raises:
        ConfigError: none of the ladder's runtimes is on this device.
        DeviceRefused: it cannot be told of some of them, and the others are not: what looks for them was killed.
        OSError: results cannot be written.
    """
    rows: list[LadderRow] = []
    by_runtime: dict[str, list[Rung]] = {}
    for rung in what.rungs:
        by_runtime.setdefault(rung.runtime, []).append(rung)
    lacking, killed = list[str](), list[str]()
    for runtime, rungs in by_runtime.items():
        try:
            about = runtime_about(runtime)
        except DeviceRefused as error:
            killed.append(str(error))
            tell(f"{runtime}: {error}; {len(rungs)} rungs left out")
            continue
        if about is None:
            lacking.append(runtime)
            tell(f"{runtime}: not on this device ({runtime_python(runtime)}), {len(rungs)} rungs left out")
            continue
        version, most = about
        threads = tuple(sorted({min(count, most or count) for count in what.threads}))
        rows += _climb_runtime(what, sorted(rungs, key=lambda r: r.predicted_bytes), version, threads, results, tell)
    if killed and len(killed) + len(lacking) == len(by_runtime):
        raise DeviceRefused("--ladder: nothing was measured: " + "; ".join(killed))
    if len(lacking) == len(by_runtime):
        raise ConfigError(
            [f"--ladder: its artifacts are for {', '.join(lacking)}, which this device does not have"],
            hint="install the runtime here, or write the ladder with --runtime for one that is here",
        )
    return rows


def _climb_runtime(
    what: Climb,
    rungs: Sequence[Rung],
    version: str,
    threads: tuple[int, ...],
    results: ResultsFile,
    tell: Callable[[str], None],
) -> list[LadderRow]:
    rows: list[LadderRow] = []
    fallen: LadderRow | None = None
    idle_bytes = 0
    for rung in rungs:
        for count in threads:
            limit = what.ceiling_bytes or available_bytes(held_bytes=rss_bytes())
            asked = QUICK_STEPS if what.is_quick else STEPS
            row = row_of(rung, threads=count, runtime_version=version, limit_bytes=limit, asked_steps=asked)
            known = None if what.again else results.of(row.identity)
            if known is not None and _still_holds(known, row):
                row = known
            elif reason := _too_much(rung, fallen, idle_bytes, limit):
                row = msgspec.structs.replace(row, outcome="skipped", reason=reason)
            else:
                row = _measure(what, rung, row, results)
            rows.append(row)
            tell(row_line(row, is_old=row is known))
            idle_bytes = max(idle_bytes, row.idle_bytes)
            if row.outcome == "killed" and (fallen is None or rung.predicted_bytes < fallen.predicted_bytes):
                fallen = row
    return rows


def _still_holds(known: LadderRow, asked: LadderRow) -> bool:
    """Whether an earlier row answers: as many steps, and a kill under a limit that is no lower than today's."""
    if known.outcome == "killed":
        return known.limit_bytes >= asked.limit_bytes or known.limit_bytes == 0
    return known.outcome == "measured" and known.asked_steps >= asked.asked_steps


def _too_much(rung: Rung, fallen: LadderRow | None, idle_bytes: int, limit: int) -> str:
    if fallen is not None and rung.predicted_bytes >= fallen.predicted_bytes:
        return f"above {fallen.shape} at batch {fallen.batch}, which was killed"
    expected = idle_bytes + rung.predicted_bytes
    if limit and expected > limit:
        return f"predicted to reach {expected / MB:.0f} MB, the limit is {limit / MB:.0f} MB"
    return ""


def _measure(what: Climb, rung: Rung, row: LadderRow, results: ResultsFile) -> LadderRow:
    if problem := _unusable(what.folder / rung.folder, rung):
        return msgspec.structs.replace(row, outcome="failed", reason=problem)
    try:
        results.add(row)
        started = time.monotonic()
        found = measure_steps(
            what.folder / rung.folder,
            batch=rung.batch,
            threads=row.threads,
            steps=row.asked_steps,
            seconds=QUICK_SECONDS if what.is_quick else SECONDS,
            limit_bytes=row.limit_bytes,
            scratch=results.path.parent,
        )
        ended = row.ended(found, time.monotonic() - started)
        results.add(ended)
    except (KeyboardInterrupt, SystemExit, ApportionError, OSError):
        with contextlib.suppress(OSError):  # a full disk is told by what is raised
            results.add(msgspec.structs.replace(row, outcome="interrupted"))
        raise
    return ended


def _unusable(folder: Path, rung: Rung) -> str:
    """Why the rung's artifact cannot be measured; empty when it is the one that the ladder lists."""
    try:
        read_artifact_folder(folder)
        digest = hashlib.sha256((folder / MANIFEST_NAME).read_bytes()).hexdigest()
    except (ApportionError, OSError) as error:
        return str(error)
    if digest == rung.digest:
        return ""
    return f"{folder}: manifest has digest {digest[:12]}, the ladder says {rung.digest[:12]}; copy the ladder again"


def row_line(row: LadderRow, *, is_old: bool = False) -> str:
    """One line for people."""
    what = f"  {row.shape:18} batch {row.batch:3} {row.threads} thread{'s' if row.threads > 1 else ' '}"
    if row.outcome != "measured":
        return f"{what}  {row.outcome}: {row.reason}"
    before, after = row.heat_c
    heat = "" if before is None or after is None else f"  {before:.0f} to {after:.0f} C"
    slowed = f"  {', '.join(row.throttling)}" if row.throttling else ""
    busy = f"  busy machine: {row.cpu_ms_p50:.2f} ms of its processor" if row.is_busy else ""
    return (
        f"{what} {row.step_ms_p50:9.2f} ms (p95 {row.step_ms_p95:8.2f})  peak {row.peak_bytes / MB:6.1f} MB = idle "
        f"{row.idle_bytes / MB:5.1f} + {row.grown_bytes / MB:6.1f}, {row.predicted_bytes / MB:6.1f} predicted"
        f"{heat}{slowed}{busy}{'  (measured before)' if is_old else ''}"
    )
