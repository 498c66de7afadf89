"""The trackers of one run: opened before its first round, told of what happens, closed with how it ended."""

from __future__ import annotations

import contextlib
import importlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import RunConfig
from coordinator.tracking import TRACKERS
from coordinator.tracking.delivery import Delivery
from coordinator.tracking.events import DeviceReported, Event, Outcome, RoundCommitted, RunEnded, RunStarted
from coordinator.tracking.record import TrackingRecord
from coordinator.tracking.timing import Clock, Stopwatch
from coordinator.tracking.tracker import EXTRA, Place, Tracker
from edge.contracts.errors import ApportionError, ConfigError

LEFT = ("report.html", "summary.json", "checkpoints/final.safetensors", "checkpoints/final.onnx")
"""What a finished run leaves for people, as far as it is there."""


class TrackedRun:
    """The deliveries to a run's trackers; without any, everything here does nothing.

    Attributes:
        stopwatch: of what happens within rounds.
        summary: set by whoever finishes the run.
    """

    def __init__(self, config: RunConfig, run_dir: Path, say: Callable[[str], None]) -> None:
        self._config = config
        self._run_dir = run_dir
        self._record = TrackingRecord(run_dir)
        self._deliveries: dict[str, Delivery] = {}
        self._missed_from: dict[str, int] = {}
        self._is_started = False
        self._devices: set[str] = set()
        self.stopwatch = Stopwatch(Clock())
        self.summary: Mapping[str, Any] = {}
        opened: list[Tracker] = []
        try:
            trackers = {name: self._opened(name, say, opened) for name in config.tracking.to}
        except BaseException:
            for tracker in opened:
                tracker.close()
            raise
        for name, tracker in trackers.items():
            self._missed_from[name] = self._record.rounds(name) if tracker.is_lasting else 0
            self._deliveries[name] = Delivery(
                name,
                tracker,
                most=config.tracking.queue,
                has_rounds=lambda rounds, name=name: self._record.has(name, rounds),  # type: ignore[misc]
                say=say,
            )

    def started(self, committed: Sequence[Mapping[str, Any]]) -> None:
        """The run begins after the rounds ``committed``, lines of ``metrics.jsonl``; trackers get those they miss."""
        if self._is_started:
            return
        self._is_started = True
        config, now_s = self._config, self.stopwatch.clock.now()
        self._put(
            RunStarted(
                federation=config.federation.name,
                run_dir=self._run_dir,
                method=config.method.name,
                model=config.model.build,
                settings=settings_of(config),
                rounds=config.federation.rounds,
                done=len(committed),
                at_s=now_s,
            )
        )
        for name, delivery in self._deliveries.items():
            for entry in committed:
                step = int(entry["round"]) + 1
                if step > self._missed_from[name]:
                    delivery.put(RoundCommitted(entry=entry, step=step, at_s=now_s))

    def reported(self, event: DeviceReported) -> None:
        """A device has reported; nothing where ``devices`` others have figures of their own."""
        if event.device not in self._devices and len(self._devices) >= self._config.tracking.devices:
            return
        self._devices.add(event.device)
        self._put(event)

    def committed(self, event: RoundCommitted) -> None:
        """A round is on disk."""
        self._put(event)

    @property
    def dropped(self) -> dict[str, int]:
        """Tracker -> events that it missed."""
        return {name: delivery.dropped for name, delivery in self._deliveries.items()}

    @property
    def is_listening(self) -> bool:
        """Whether there is any tracker."""
        return bool(self._deliveries)

    def close(self, outcome: Outcome, reason: str = "") -> None:
        """Tell how the run ended, and wait a little for trackers to take what is left."""
        ended = RunEnded(
            outcome=outcome,
            reason=reason,
            summary=self.summary,
            files=tuple(path for name in LEFT if (path := self._run_dir / name).is_file()) if self.summary else (),
            at_s=self.stopwatch.clock.now(),
        )
        for delivery in self._deliveries.values():
            delivery.close(self._config.tracking.wait_s, ended if self._is_started else None)

    def _put(self, event: Event) -> None:
        for delivery in self._deliveries.values():
            delivery.put(event)

    def _opened(self, name: str, say: Callable[[str], None], opened: list[Tracker]) -> Tracker:
        place = Place(
            config=self._config.tracking,
            experiment=self._config.tracking.experiment or self._config.federation.name,
            name=self._run_dir.resolve().name,
            run_dir=self._run_dir.resolve(),
            remembered=self._record.name(name),
            remember=lambda own: self._record.remember(name, own),
            say=say,
        )
        opened.append(tracker_class(name)(place))
        return opened[-1]


def tracker_class(name: str) -> type[Tracker]:
    """The class of the tracker ``name``, with what it needs imported.

    Raises:
        ConfigError: a package that it needs is not installed; the hint names the extra.
    """
    module, _, class_name = TRACKERS[name].partition(":")
    try:
        found: type[Tracker] = getattr(importlib.import_module(module), class_name)
        found.require()
    except ImportError as error:
        missing = f"$.tracking.to: '{name}' needs a package that is not installed here ({error})"
        raise ConfigError([missing], hint=f"pip install 'apportion[{EXTRA}]', or leave '{name}' out") from error
    return found


def check_trackers(config: RunConfig) -> None:
    """Check that what the run's trackers need is installed.

    Raises:
        ConfigError: as :func:`tracker_class`.
    """
    for name in config.tracking.to:
        tracker_class(name)


@contextlib.contextmanager
def tracked_run(config: RunConfig, run_dir: Path, say: Callable[[str], None]) -> Iterator[TrackedRun]:
    """The trackers of the run in ``run_dir`` while the context is open; its end, by error or not, is told to them.

    Raises:
        ConfigError: as :func:`tracker_class`; also what a tracker cannot be opened with.
    """
    tracked = TrackedRun(config, run_dir, say)
    outcome: Outcome = "failed"
    reason = ""
    try:
        with tracked.stopwatch.noting() if tracked.is_listening else contextlib.nullcontext():
            yield tracked
        outcome = "finished"
    except ApportionError as error:
        outcome, reason = "stopped" if error.code == "run-stopped" else "failed", str(error)
        raise
    except KeyboardInterrupt:
        outcome, reason = "stopped", "interrupted"
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        tracked.close(outcome, reason)


def settings_of(config: RunConfig) -> dict[str, str]:
    """``table.key`` -> value, of the run file with every key spelled out."""
    found: dict[str, str] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{path}.{key}" if path else str(key), inner)
        elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
            for number, inner in enumerate(value):
                add(f"{path}.{number}", inner)
        else:
            found[path] = str(value)

    add("", tomllib.loads(canonical_toml(config)))
    return found
