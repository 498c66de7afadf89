"""What a climb comes to: its fits, what is kept of them, and how all of it is told to people and to scripts.

Imports NumPy only once everything is measured: this process is beside the measured one all the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edge.contracts.errors import ConfigError, DeviceRefused
from edge.measuring.climb import MB, Climb, climb, default_threads, ended_by_signals
from edge.measuring.idle_size import measure_idle_sizes
from edge.measuring.ladder import chosen_rungs, read_ladder
from edge.measuring.results import BUSY_SHARE, LadderRow, ResultsFile
from edge.runtimes.environments import runtime_python
from profiles.device import DeviceProfile
from profiles.measured_lines import write_measured_lines

if TYPE_CHECKING:
    from profiles.ladder_fit import LadderFits, LadderPoint
    from profiles.latency import WorkTime


@dataclass(frozen=True)
class LadderArguments:
    """What a command line says of a climb.

    Attributes:
        folder: of the ladder.
        rungs: only these, counted from 1.
        threads: numbers with commas; empty: one, and all processors.
        ceiling_mb: most that a measuring process may reach; 0: what is free.
        keep: an agent's store, where results and fitted lines go; None: results go to the ladder's folder.
    """

    folder: Path
    quick: bool = False
    rungs: tuple[int, ...] = ()
    runtime: str = ""
    threads: str = ""
    ceiling_mb: float = 0.0
    keep: Path | None = None
    again: bool = False

    def climb(self) -> Climb:
        """What is to be measured.

        Raises:
            ConfigError: no ladder there, a rung it does not have, or numbers that are none.
        """
        if self.ceiling_mb < 0:
            raise ConfigError([f"--ceiling-mb: {self.ceiling_mb} is negative"], hint="0 means what is free")
        return Climb(
            folder=self.folder,
            rungs=chosen_rungs(read_ladder(self.folder), quick=self.quick, runtime=self.runtime, numbers=self.rungs),
            threads=tuple(sorted(set(numbers(self.threads, "--threads")))) or default_threads(),
            is_quick=self.quick,
            ceiling_bytes=round(self.ceiling_mb * MB),
            again=self.again,
        )


def numbers(text: str, flag: str) -> list[int]:
    """The numbers of ``8,32``; none of an empty text.

    Raises:
        ConfigError: anything else.
    """
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and 0 < int(part) < 100_000 for part in parts):
        raise ConfigError(
            [f"{flag}: {text!r} is no list of numbers from 1, as in 8,32"], hint="apportion profile --help"
        )
    return [int(part) for part in parts]


@dataclass(frozen=True)
class Climbed:
    """A finished climb.

    Attributes:
        results: the file that has its rows.
        seconds: it took now; what was measured before costs nothing.
    """

    what: Climb
    rows: tuple[LadderRow, ...]
    results: Path
    seconds: float


def climbed(arguments: LadderArguments, tell: Callable[[str], None]) -> Climbed:
    """Climb.

    Raises:
        ConfigError: as :meth:`LadderArguments.climb` and :func:`edge.measuring.climb.climb`.
        OSError: results cannot be written.
    """
    started = time.monotonic()
    what, keep = arguments.climb(), arguments.keep
    folder = keep or what.folder
    with ResultsFile(folder).held(), ended_by_signals():
        results = ResultsFile(folder)
        rows = climb(what, results, tell)
    return Climbed(what, tuple(rows), results.path, time.monotonic() - started)


def ladder_points(rows: Sequence[LadderRow]) -> list[LadderPoint]:
    """The measured rows. A one-thread step that had to share its processor counts with its processor time."""
    from profiles.ladder_fit import LadderPoint

    return [
        LadderPoint(
            shape=row.shape,
            runtime=row.runtime,
            batch=row.batch,
            threads=row.threads,
            macs=row.macs,
            live_bytes=row.live_bytes,
            predicted_bytes=row.predicted_bytes,
            idle_bytes=row.idle_bytes,
            grown_bytes=row.grown_bytes,
            step_ms=row.alone_ms,
            parameters=row.parameters,
            graph_bytes=row.graph_bytes,
            work=row.work,
        )
        for row in rows
        if row.outcome == "measured"
    ]


def measured_profile(profile: DeviceProfile, done: Climbed, keep: Path | None) -> tuple[DeviceProfile, LadderFits]:
    """``profile`` with what the climb measured; the lines go to ``measured.json`` in ``keep``, an agent's store.

    Raises:
        OSError: they cannot be written.
    """
    from profiles.ladder_fit import fit_ladder

    fits = fit_ladder(ladder_points(done.rows))
    if keep is not None:
        write_measured_lines(keep, fits.lines)
    versions = {row.runtime: row.runtime_version for row in done.rows if row.outcome == "measured"}
    idle = dict(profile.trainer_idle_bytes)
    supervisor = profile.supervisor_idle_bytes
    for runtime in versions:
        try:
            supervisor, idle[runtime] = measure_idle_sizes(runtime, python=str(runtime_python(runtime)))
        except DeviceRefused:  # a trainer that was measured a moment ago; its rows say its size, too
            idle[runtime] = max(row.idle_bytes for row in done.rows if row.runtime == runtime)
    measured = {"trainer_idle_bytes": "measured", "supervisor_idle_bytes": "measured", "runtimes": "measured"}
    found = msgspec.structs.replace(
        profile,
        runtimes={**profile.runtimes, **versions},
        trainer_idle_bytes=idle,
        supervisor_idle_bytes=supervisor,
        sources={**profile.sources, **(measured if versions else {})},
    )
    return fits.lines.put_into(found), fits


def ladder_values(done: Climbed, fits: LadderFits) -> dict[str, Any]:
    """``ladder`` of ``--json``."""
    return {
        "folder": str(done.what.folder),
        "results": str(done.results),
        "seconds": round(done.seconds, 1),
        "rows": [row_values(row) for row in done.rows],
        "memory": [
            {"runtime": runtime, "scale": found.scale, "offset_bytes": found.offset_bytes,
             "floor_bytes": found.floor_bytes, "floor_base_bytes": found.floor_base_bytes,
             "floor_graph_scale": found.floor_graph_scale, "missing_bytes": found.missing_bytes,
             **asdict(found.quality)}
            for runtime, found in fits.memory.items()
        ],
        "step_times": [
            {"runtime": runtime, "threads": threads, "constant_ms": found.constant_ms,
             "gigamac_ms": found.gigamac_ms, "megabyte_ms": found.megabyte_ms,
             "graph_kilobyte_ms": found.graph_kilobyte_ms, "megaparameter_ms": found.megaparameter_ms,
             "convolution_gigamac_ms": found.convolution_gigamac_ms,
             "padded_gigamac_ms": found.padded_gigamac_ms, "matrix_gigamac_ms": found.matrix_gigamac_ms,
             **asdict(found.quality)}
            for (runtime, threads), found in fits.steps.items()
        ],
        "temperature": _temperature(done.rows),
        "problems": list(fits.problems),
    }  # fmt: skip


def row_values(row: LadderRow) -> dict[str, Any]:
    """A row for scripts."""
    values: dict[str, Any] = msgspec.to_builtins(row)
    del values["schema"]
    return {**values, "alone_ms": row.alone_ms, "is_busy": row.is_busy}


def _rates(work: WorkTime) -> str:
    if not (work.convolution_gigamac_ms or work.padded_gigamac_ms or work.matrix_gigamac_ms):
        return f"{work.gigamac_ms:.1f} ms"
    return (
        f"{work.convolution_gigamac_ms:.1f} ms (convolutions), {work.padded_gigamac_ms:.1f} ms (those of channels in "
        f"sixteens), {work.matrix_gigamac_ms:.1f} ms (products)"
    )


def fit_lines(done: Climbed, fits: LadderFits) -> list[str]:
    """Lines for people: what was fitted, how well, and what was in the way."""
    told = []
    for runtime, line in fits.memory.items():
        quality = line.quality
        floor = f", at least {line.floor_bytes / MB:.1f}" if line.floor_bytes else ""
        if line.floor_graph_scale:
            floor = f", at least {line.floor_base_bytes / MB:.1f} + {line.floor_graph_scale:.0f} x the graph's size"
        told += [
            f"memory on {runtime}: {line.scale:.3f} x predicted {line.offset_bytes / MB:+.1f} MB{floor}",
            f"  {quality.points} settings, {quality.left_out} left out, median error {quality.median_error:.1%}, worst "
            f"{quality.worst_error:.1%}",
        ]
    for (runtime, threads), work in fits.steps.items():
        quality = work.quality
        by_graph = f"{1000 * work.graph_kilobyte_ms:.1f} ms per MB of graph"
        start = by_graph if work.graph_kilobyte_ms else f"{work.constant_ms:.2f} ms"
        told += [
            f"step on {runtime}, {threads} thread{'s' if threads > 1 else ''}: {start} + {_rates(work)} per 10^9 "
            f"multiply-accumulates + {work.megabyte_ms:.3f} ms per MB (10^6) of activations + "
            f"{work.megaparameter_ms:.2f} ms per 10^6 parameters",
            f"  {quality.points} settings, {quality.left_out} left out, median error {quality.median_error:.1%}, worst "
            f"{quality.worst_error:.1%}",
        ]
    told += [f"not fitted: {problem}" for problem in fits.problems]
    heat = _temperature(done.rows)
    if heat is None:
        told.append("temperature: no sensor can be read here")
    else:
        told.append(f"temperature: {heat['first_c']:.1f} to {heat['last_c']:.1f} C, at most {heat['highest_c']:.1f}")
        if heat["c_per_min"] is not None:
            told[-1] += f", {heat['c_per_min']:+.2f} C per minute"
    busy = sum(row.is_busy for row in done.rows)
    if busy:
        told.append(
            f"{busy} one-thread settings had less than {BUSY_SHARE:.0%} of their processor: their processor time was "
            "fitted instead; times with more threads are too long on a machine that has other work"
        )
    told.append(f"{len(done.rows)} settings in {done.seconds:.0f} s; kept in {done.results}")
    return told


def _temperature(rows: Sequence[LadderRow]) -> dict[str, float | None] | None:
    """Over all measured rows in the order of their time; None without a sensor."""
    points = sorted((row.measured_at, *row.heat_c) for row in rows if None not in row.heat_c and row.measured_at)
    if not points:
        return None
    ends = [after for _, _, after in points if after is not None]
    highest = max(value for point in points for value in point[1:] if value is not None)
    drift = None
    if len({at for at, _, _ in points}) > 1:
        slope, _ = statistics.linear_regression([at / 60 for at, _, _ in points], ends)
        drift = round(slope, 3)
    return {"first_c": points[0][1], "last_c": ends[-1], "highest_c": highest, "c_per_min": drift}
