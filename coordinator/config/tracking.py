"""``[tracking]`` of a run file: the trackers that hear of the run, and where each keeps what it hears."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

import msgspec

from coordinator.config.store import has_password
from coordinator.config.table_reader import TableReader, absolute

LogForm = Literal["text", "json"]


class TrackingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[tracking]``; a run without the table is tracked nowhere.

    Attributes:
        to: the trackers that hear of the run: ``tensorboard``, ``mlflow``, ``wandb``, ``prometheus``,
            ``opentelemetry``. Example: ``["tensorboard", "prometheus"]``.
        experiment: name that runs are found under: MLflow's experiment, W&B's project, OpenTelemetry's service; the
            federation's own where empty. Example: ``"kitchen-sensors"``.
        devices: devices with figures of their own, the first so many that report; 0 = figures of whole rounds only.
            Example: ``50``.
        logs: what the coordinator says on stderr: lines of ``text``, or a ``json`` object per line. Example:
            ``"json"``.
        tensorboard_dir: folder of the event files; ``tensorboard`` in the run's directory where empty. Example:
            ``"boards"``.
        mlflow_uri: ``https://...`` of a tracking server, or ``sqlite:///FILE``; ``mlflow.db`` in the run's directory
            where empty. Example: ``"https://mlflow.example.org"``.
        wandb_dir: folder of the offline files; ``wandb`` in the run's directory where empty. Example: ``"wandb"``.
        prometheus_address: ``HOST:PORT`` where ``/metrics`` is served while the run goes on; port 0: the system's
            choice, which is said. Example: ``"0.0.0.0:9464"``.
        queue: events that wait for a slow tracker, at most; further ones are dropped, counted and said once. Example:
            ``50000``.
        wait_s: seconds that the end of a run waits for trackers to take what is left. Example: ``30``.
    """

    to: tuple[str, ...] = ()
    experiment: str = ""
    devices: int = 20
    logs: LogForm = "text"
    tensorboard_dir: str = ""
    mlflow_uri: str = ""
    wandb_dir: str = ""
    prometheus_address: str = "127.0.0.1:9464"
    queue: int = 10_000
    wait_s: float = 10.0


OWN_KEYS = {
    "tensorboard-dir": "tensorboard",
    "mlflow-uri": "mlflow",
    "wandb-dir": "wandb",
    "prometheus-address": "prometheus",
}
"""Keys that belong to one tracker."""


def read_tracking(table: TableReader, trackers: Iterable[str], folder: Path) -> TrackingConfig:
    """The table's values; relative paths are relative to ``folder``."""
    default = TrackingConfig()
    chosen = table.choices("to", trackers, ()) if table.has("to") else ()
    config = TrackingConfig(
        to=chosen,
        experiment=table.text("experiment", default.experiment),
        devices=table.integer("devices", default.devices, low=0, high=100_000),
        logs=table.choice("logs", get_args(LogForm), default.logs),
        tensorboard_dir=absolute(table.text("tensorboard-dir", ""), folder),
        mlflow_uri=table.text("mlflow-uri", ""),
        wandb_dir=absolute(table.text("wandb-dir", ""), folder),
        prometheus_address=table.text("prometheus-address", default.prometheus_address),
        queue=table.integer("queue", default.queue, low=10, high=1_000_000),
        wait_s=table.number("wait-s", default.wait_s, low=0.0, high=600.0),
    )
    for key, tracker in OWN_KEYS.items():
        if table.has(key) and tracker not in chosen:
            table.problem(key, f'belongs to "{tracker}", which $.tracking.to does not name; add it, or leave this out')
    if config.mlflow_uri and (problem := _uri_problem(config.mlflow_uri)):
        table.problem("mlflow-uri", problem)
    if host_and_port(config.prometheus_address) is None:
        table.problem(
            "prometheus-address",
            f'"{config.prometheus_address}" is no HOST:PORT; give 127.0.0.1:9464, or 0.0.0.0:9464 for other machines',
        )
    return config


def host_and_port(address: str) -> tuple[str, int] | None:
    """``127.0.0.1:9464`` or ``[::1]:9464`` in two parts; None where it is neither."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    is_usable = bool(host) and bool(colon) and port.isascii() and port.isdigit() and int(port) < 65_536
    return (host, int(port)) if is_usable else None


def _uri_problem(uri: str) -> str:
    scheme = urlsplit(uri).scheme
    if scheme not in ("http", "https", "sqlite", "postgresql"):
        return f"'{uri[:80]}' is not usable; give https://HOST of a tracking server, or sqlite:///FILE"
    if has_password(uri):
        return "leave the password out, every run keeps this text; set MLFLOW_TRACKING_USERNAME and _PASSWORD"
    return ""
