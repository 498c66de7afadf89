"""Trackers by name. A new one is one new file here and one line in :data:`TRACKERS`, imported if a run asks for it."""

from __future__ import annotations

TRACKERS: dict[str, str] = {
    "tensorboard": "coordinator.tracking.tensorboard:TensorBoard",
    "mlflow": "coordinator.tracking.mlflow:MLflow",
    "wandb": "coordinator.tracking.wandb:WeightsAndBiases",
    "prometheus": "coordinator.tracking.prometheus:Prometheus",
    "opentelemetry": "coordinator.tracking.opentelemetry:OpenTelemetry",
}
"""Name -> ``module:class`` of a :class:`coordinator.tracking.tracker.Tracker`."""
