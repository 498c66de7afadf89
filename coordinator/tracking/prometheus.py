"""Prometheus: ``/metrics`` for as long as the run goes on, in its conventions (base units, ``_total`` for counters)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from coordinator.config.tracking import host_and_port
from coordinator.tracking.events import DeviceReported, RoundCommitted, RunEnded, RunStarted
from coordinator.tracking.tracker import Place, Tracker
from edge.contracts.errors import ConfigError

ROUND_S = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
"""Upper bounds of the histogram of rounds' durations."""

_OF_A_DEVICE: Mapping[str, tuple[str, str, float]] = {
    "loss": ("apportion_device_loss", "Mean training loss of a device's last report", 1.0),
    "num_examples": ("apportion_device_examples", "Examples that a device trains on", 1.0),
    "step_ms_p50": ("apportion_device_step_seconds", "Median training step of a device's last report", 1e-3),
    "wall_s": ("apportion_device_round_seconds", "From a device's order to its last report", 1.0),
    "budget_bytes": ("apportion_device_budget_bytes", "Memory that a device's owner allows, if there is a limit", 1.0),
    "temperature_c": ("apportion_device_temperature_celsius", "Of a device's processor", 1.0),
    "battery_percent": ("apportion_device_battery_ratio", "Charge of a device's battery, 0 to 1", 1e-2),
}
"""Figure of a report -> metric, help, and the factor to its base unit."""

PEAK = "apportion_device_peak_bytes"


class Prometheus(Tracker):
    """A registry of its own, served at ``prometheus-address``."""

    is_lasting = False

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.registry = CollectorRegistry()
        self._run = self._made(Info, "apportion_run", "The run that these metrics are of")
        self._planned = self._made(Gauge, "apportion_rounds_planned", "Rounds of training that the run has")
        self._done = self._made(Gauge, "apportion_rounds_done", "Rounds that are committed, of the whole run")
        self._rounds = self._made(Counter, "apportion_rounds", "Rounds committed since this process began", "program")
        self._seconds = self._made(
            Histogram, "apportion_round_duration_seconds", "Of a committed round", buckets=ROUND_S
        )
        self._stages = self._made(Gauge, "apportion_stage_seconds", "A part of the last round", "stage")
        self._loss = self._made(Gauge, "apportion_train_loss", "Mean training loss of the last round")
        self._score = self._made(
            Gauge, "apportion_evaluation", "Last evaluation of a model at the coordinator", "model", "metric"
        )
        self._epsilon = self._made(Gauge, "apportion_privacy_epsilon", "Privacy spent (differential privacy)")
        self._reports = self._made(Counter, "apportion_reports", "Updates that count")
        self._last_reports = self._made(Gauge, "apportion_round_reports", "Updates that count, of the last round")
        self._unanswered = self._made(
            Counter, "apportion_assignments_unanswered", "Assignments without an update that counts", "reason"
        )
        self._examples = self._made(Counter, "apportion_examples", "Examples that updates stand for")
        self._bytes = self._made(Counter, "apportion_transferred_bytes", "As devices report them", "direction")
        self._over = self._made(Counter, "apportion_over_budget_reports", "Reports of more memory than the budget")
        self._dropped = self._made(
            Gauge, "apportion_tracking_dropped_events", "Events that a tracker missed", "tracker"
        )
        self._devices = {key: self._made(Gauge, *named[:2], "device") for key, named in _OF_A_DEVICE.items()}
        self._peak = self._made(Gauge, PEAK, "Peak memory of supervisor and trainer together", "device")
        address = host_and_port(place.config.prometheus_address)
        assert address is not None  # checked when the run file was read
        host, port = address
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            where = f"{place.config.prometheus_address} cannot be served at ({error.strerror})"
            raise ConfigError(
                [f"$.tracking.prometheus-address: {where}; another run may be there: give another port, or 0"]
            ) from error
        self.port: int = self._server.server_port
        place.say(f"metrics for Prometheus at http://{host}:{self.port}/metrics")

    def run_started(self, event: RunStarted) -> None:
        """What the run is."""
        self._run.info(
            {
                "federation": event.federation,
                "method": event.method,
                "model": event.model,
                "run": event.run_dir.resolve().name,
            }
        )
        self._planned.set(event.rounds)
        self._done.set(event.done)

    def device_reported(self, event: DeviceReported) -> None:
        """Its newest figures."""
        for key, gauge in self._devices.items():
            if key in event.figures:
                gauge.labels(event.device).set(event.figures[key] * _OF_A_DEVICE[key][2])
        peak = event.figures.get("trainer_peak_bytes", 0.0) + event.figures.get("supervisor_peak_bytes", 0.0)
        if peak:
            self._peak.labels(event.device).set(peak)

    def round_committed(self, event: RoundCommitted) -> None:
        """Its figures; of a round that an earlier process committed those that are no counts of this one."""
        entry = event.entry
        program = str(entry.get("program", "train"))
        if program == "train":
            self._done.set(event.step)
        self._last_reports.set(entry.get("reports", 0))
        if program == "train" and "train_loss" in entry:
            self._loss.set(entry["train_loss"])
        for model, scores in entry.get("evaluation", {}).items():
            for metric, value in scores.items():
                self._score.labels(model, metric).set(value)
        if isinstance(privacy := entry.get("privacy"), Mapping) and "epsilon" in privacy:
            self._epsilon.set(privacy["epsilon"])
        for tracker, count in event.dropped.items():
            self._dropped.labels(tracker).set(count)
        if not event.spans:
            return
        self._rounds.labels(program).inc()
        self._seconds.observe(entry.get("wall_s", 0.0))
        self._reports.inc(entry.get("reports", 0))
        self._examples.inc(entry.get("examples", 0))
        self._over.inc(entry.get("over_budget", 0))
        for direction in ("up", "down"):
            self._bytes.labels(direction).inc(entry.get(f"bytes_{direction}", 0))
        for reason, count in event.unanswered.items():
            self._unanswered.labels(reason).inc(count)
        stages = {span.name: 0.0 for span in event.spans if span.name not in ("round", "assignment")}
        for span in event.spans:
            if span.name in stages:
                stages[span.name] += float(span.attributes.get("busy_s", span.ended_s - span.began_s))
        for name, seconds in stages.items():
            self._stages.labels(name).set(seconds)

    def run_ended(self, event: RunEnded) -> None:
        """The last values stay until the process ends, for the last scrape."""

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def _made(self, kind: Callable[..., Any], name: str, text: str, *labels: str, **options: Any) -> Any:
        return kind(name, text, labels, registry=self.registry, **options)
