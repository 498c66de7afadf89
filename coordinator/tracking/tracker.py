"""The port: what a tracker is given, and what it may do with it.

Every method is called in one thread of the tracker's own (:mod:`coordinator.tracking.delivery`). It may take its time
and may raise: the run neither waits for it nor ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from coordinator.config.tracking import TrackingConfig
from coordinator.tracking.events import DeviceReported, Event, RoundCommitted, RunEnded, RunStarted

EXTRA = "tracking"
"""The extra of the package that brings what trackers need."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a tracker is opened with.

    Attributes:
        experiment: name that runs are found under.
        name: of this run.
        remembered: what :attr:`remember` was told by an earlier process of the run; empty at its begin.
        remember: keeps the tracker's own name for the run, so that a resumed run goes on there.
        say: a line for people.
    """

    config: TrackingConfig
    experiment: str
    name: str
    run_dir: Path
    remembered: str
    remember: Callable[[str], None]
    say: Callable[[str], None]


class Tracker:
    """Hears of a run; a subclass overrides what it wants to hear. Opening one may raise ConfigError.

    Attributes:
        is_lasting: what it heard is still there when another process goes on with the run.
    """

    is_lasting: ClassVar[bool] = True

    @classmethod
    def require(cls) -> None:
        """Import what it needs, as it needs it; called before one is opened, and where a run file is checked.

        Raises:
            ImportError: it is not installed.
        """

    def __init__(self, place: Place) -> None:
        self.place = place

    def run_started(self, event: RunStarted) -> None:
        """First of all."""

    def device_reported(self, event: DeviceReported) -> None:
        """Once for each device and round, up to ``devices`` of them."""

    def round_committed(self, event: RoundCommitted) -> None:
        """In the order of rounds. After a kill the last one may come a second time, with the same figures."""

    def run_ended(self, event: RunEnded) -> None:
        """Last of all, but for :meth:`close`."""

    def close(self) -> None:
        """Let go of files, connections and ports."""

    def take(self, event: Event) -> None:
        """Call the method of ``event``."""
        match event:
            case RunStarted():
                self.run_started(event)
            case DeviceReported():
                self.device_reported(event)
            case RoundCommitted():
                self.round_committed(event)
            case RunEnded():
                self.run_ended(event)
