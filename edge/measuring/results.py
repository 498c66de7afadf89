"""What a climb found, a line of JSON per setting in a file that grows while it is measured.

A line goes to the disk when its setting begins and another when it ends, so that a climb which is cut off goes on where
it was. A setting that began and did not end, with nobody interrupting it, took the whole process or the machine with
it: it counts as killed and is not begun again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import msgspec

from edge.contracts.errors import ConfigError
from edge.measuring.ladder import Rung
from edge.measuring.step_measurement import StepMeasurement
from profiles.step_work import StepWork

FILE_NAME = "ladder-results.jsonl"
SCHEMA = "apportion.ladder-result/1"
TOOK_ALL = "took the measuring process, or the machine, with it"

BUSY_SHARE = 0.9
"""With one thread, less of the processor than this means that something else ran: the time is too long."""

Outcome = Literal["begun", "interrupted", "measured", "killed", "failed", "skipped"]


class LadderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: a rung with a number of threads.

    Attributes:
        digest: of the artifact's manifest; with runtime_version, batch and threads the setting's identity.
        outcome: ``skipped`` ones were not begun; ``killed`` ones ended for their memory.
        reason: why it was killed, failed or skipped.
        cpu_share: processor time per thread and second; well below 1 with one thread, others used the processor.
        cpu_ms_p50: processor time of a step, of all its threads, the median.
        heat_c, heat_c_per_min: before and after, and its drift meanwhile; None without a sensor.
        throttling: what slowed the processor meanwhile; None where it cannot be told.
        limit_bytes: what the process was allowed.
        load: the machine's load average over one minute when it began.
        asked_steps: how many steps would have been timed with time enough.
        seconds: the whole child took, from its start to its end.
        measured_at: seconds since 1970.
    """

    schema: str = SCHEMA
    shape: str
    digest: str
    runtime: str
    runtime_version: str
    batch: int
    threads: int
    parameters: int
    macs: int
    live_bytes: int
    predicted_bytes: int
    graph_bytes: int = 0
    work: StepWork | None = None
    outcome: Outcome = "begun"
    reason: str = ""
    steps: int = 0
    step_ms_p50: float = 0.0
    step_ms_p95: float = 0.0
    idle_bytes: int = 0
    peak_bytes: int = 0
    cpu_share: float = 0.0
    cpu_ms_p50: float = 0.0
    heat_c: tuple[float | None, float | None] = (None, None)
    heat_c_per_min: float | None = None
    throttling: tuple[str, ...] | None = None
    limit_bytes: int = 0
    load: float = 0.0
    asked_steps: int = 0
    seconds: float = 0.0
    measured_at: float = 0.0

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """What makes two rows of one setting."""
        return self.digest, self.runtime_version, self.batch, self.threads

    @property
    def grown_bytes(self) -> int:
        """The peak above idle."""
        return self.peak_bytes - self.idle_bytes

    @property
    def is_busy(self) -> bool:
        """Whether something else used the processor while it was timed, as far as one thread can tell."""
        return self.outcome == "measured" and self.threads == 1 and self.cpu_share < BUSY_SHARE

    @property
    def alone_ms(self) -> float:
        """Time of a step that has its processor to itself: the median, or a busy one's processor time."""
        return min(self.step_ms_p50, self.cpu_ms_p50) if self.is_busy else self.step_ms_p50

    def ended(self, found: StepMeasurement, seconds: float) -> LadderRow:
        """This setting with what was found."""
        outcome: Outcome = "killed" if found.is_killed else "failed" if found.ended else "measured"
        told = {name: value for name, value in asdict(found).items() if name in _TAKEN}
        return msgspec.structs.replace(
            self, **told, outcome=outcome, reason=found.ended, seconds=round(seconds, 2), measured_at=time.time()
        )


_TAKEN = {"steps", "step_ms_p50", "step_ms_p95", "idle_bytes", "peak_bytes", "cpu_share", "cpu_ms_p50", "heat_c",
          "heat_c_per_min", "throttling", "limit_bytes"}  # fmt: skip


def row_of(rung: Rung, *, threads: int, runtime_version: str, limit_bytes: int, asked_steps: int) -> LadderRow:
    """A setting that is about to be measured."""
    return LadderRow(
        shape=rung.shape,
        digest=rung.digest,
        runtime=rung.runtime,
        runtime_version=runtime_version,
        batch=rung.batch,
        threads=threads,
        parameters=rung.parameters,
        macs=rung.macs,
        live_bytes=rung.live_bytes,
        predicted_bytes=rung.predicted_bytes,
        graph_bytes=rung.graph_bytes,
        work=rung.work,
        limit_bytes=limit_bytes,
        asked_steps=asked_steps,
        load=round(os.getloadavg()[0], 2),
        measured_at=time.time(),
    )


class ResultsFile:
    """The file in ``folder``, read when it is opened; lines that are none (cut off in the middle) are passed over."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._rows: dict[tuple[str, str, int, int], LadderRow] = {}
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        for row in read_rows(text.splitlines()):
            self._rows[row.identity] = row
        self._is_cut_off = bool(text) and not text.endswith("\n")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While it is open, no other climb writes here: what that one has begun would count as killed to this one.

        Raises:
            ConfigError: one does already.
            OSError: the folder cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    [f"{self.path}: another climb writes its results there"],
                    hint="wait for it, or end it: the same command then goes on where it was",
                ) from error
            yield

    def of(self, identity: tuple[str, str, int, int]) -> LadderRow | None:
        """What is known of a setting; one that never ended counts as killed, one that was interrupted is unknown."""
        row = self._rows.get(identity)
        if row is None or row.outcome == "interrupted":
            return None
        return msgspec.structs.replace(row, outcome="killed", reason=TOOK_ALL) if row.outcome == "begun" else row

    def add(self, row: LadderRow) -> None:
        """Put ``row`` on the disk.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write((b"\n" if self._is_cut_off else b"") + msgspec.json.encode(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._is_cut_off = False
        self._rows[row.identity] = row


def read_rows(lines: Iterable[str]) -> list[LadderRow]:
    """The rows among ``lines``, those of this release."""
    found = []
    for line in lines:
        try:
            row = msgspec.json.decode(line.encode(), type=LadderRow)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            continue
        if row.schema == SCHEMA:
            found.append(row)
    return found
