"""Memory, processor time and open files of a process while it runs, from /proc; sampled by a thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.25


@dataclass(frozen=True)
class Sample:
    """A process at ``at_s`` on the monotonic clock; bytes of physical memory."""

    at_s: float
    rss_bytes: int
    peak_bytes: int
    cpu_s: float
    open_files: int
    note: float = 0.0


def sample(pid: int, note: float = 0.0) -> Sample | None:
    """The process now; None when it is gone."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        files = len(os.listdir(f"/proc/{pid}/fd"))
        rss, peak = (int(status[key].split()[0]) << 10 for key in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Sample(time.monotonic(), rss, peak, cpu_s, files, note)


class Watch:
    """Samples of processes while its context is open.

    Args:
        pids: name -> process id.
        note: a number kept with each sample, such as the rounds done.
        every_s: seconds between samples.
    """

    def __init__(
        self, pids: dict[str, int], *, note: Callable[[], float] = lambda: 0.0, every_s: float = SAMPLE_S
    ) -> None:
        self._pids, self._note, self._every_s = pids, note, every_s
        self.samples: dict[str, list[Sample]] = {name: [] for name in pids}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._ended.is_set():
            note = 0.0
            with contextlib.suppress(OSError, ValueError):
                note = self._note()
            for name, pid in self._pids.items():
                if (found := sample(pid, note)) is not None:
                    self.samples[name].append(found)
            self._ended.wait(self._every_s)


def peak_bytes(samples: Sequence[Sample]) -> int:
    """The most physical memory that the process had; 0 without samples."""
    return max((entry.peak_bytes for entry in samples), default=0)


def cpu_s(samples: Sequence[Sample]) -> float:
    """Processor seconds between the first sample and the last."""
    return samples[-1].cpu_s - samples[0].cpu_s if samples else 0.0
