"""MLflow: a run with its parameters, metrics by round and files, at a server or in a database file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coordinator.tracking.events import DeviceReported, RoundCommitted, RunEnded, RunStarted
from coordinator.tracking.figures import round_figures
from coordinator.tracking.tracker import Place, Tracker
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Set where it is not: the package then speaks to nobody but the tracking server, and gives up in seconds."""

DATABASE, FILES = "mlflow.db", "mlflow-files"
MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""In one request, as the REST API allows."""
MOST_LENGTH = 6000
"""Of a parameter's value."""

_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """A run at ``mlflow-uri``, or in ``mlflow.db`` of the run's directory."""

    @classmethod
    def require(cls) -> None:
        """The package, with its own messages to its makers off."""
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        import mlflow.tracking  # noqa: F401

        logging.getLogger("mlflow").setLevel(logging.WARNING)

    def __init__(self, place: Place) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        super().__init__(place)
        self._uri = place.config.mlflow_uri or f"sqlite:///{place.run_dir / DATABASE}"
        self._run_id = place.remembered
        try:
            # In the run's own thread: a database file is made with Alembic, as the run's ledger is, one at a time.
            self._client: MlflowClient = MlflowClient(tracking_uri=self._uri)
        except (MlflowException, OSError) as error:
            raise ConfigError([f"$.tracking.mlflow-uri: {self._uri} cannot be opened ({error})"]) from error

    def run_started(self, event: RunStarted) -> None:
        """A new run, or the one that was begun before."""
        from mlflow.entities import Param

        if self._run_id:
            self._client.update_run(self._run_id, status="RUNNING")
            return
        tags = {"mlflow.runName": self.place.name, "method": event.method, "model": event.model}
        run = self._client.create_run(self._experiment(), start_time=_ms(event.at_s), tags=tags)
        self._run_id = run.info.run_id
        self.place.remember(self._run_id)
        parameters = [Param(key, value[:MOST_LENGTH]) for key, value in event.settings.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[first : first + MOST_PARAMETERS])

    def device_reported(self, event: DeviceReported) -> None:
        """Its figures."""
        self._log({f"round_device/{event.device}/{key}": value for key, value in event.figures.items()}, event)

    def round_committed(self, event: RoundCommitted) -> None:
        """Its figures."""
        self._log(round_figures(event.entry), event)

    def run_ended(self, event: RunEnded) -> None:
        """The files of a finished run, and how it ended."""
        from mlflow.entities import RunTag

        for path in event.files:
            self._client.log_artifact(self._run_id, str(path), "model" if path.parent.name == "checkpoints" else None)
        if event.reason:
            self._client.log_batch(self._run_id, tags=[RunTag("ended", event.reason[:MOST_LENGTH])])
        self._client.set_terminated(self._run_id, _STATES[event.outcome], _ms(event.at_s))

    def _log(self, figures: Mapping[str, float], event: DeviceReported | RoundCommitted) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, _ms(event.at_s or time.time()), event.step) for name, value in figures.items()]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + MOST_METRICS])

    def _experiment(self) -> str:
        name = self.place.experiment
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # A server decides itself where files are; a database file's are beside the run.
        files = None if self.place.config.mlflow_uri else (self.place.run_dir / FILES).as_uri()
        return str(self._client.create_experiment(name, artifact_location=files))


def _ms(at_s: float) -> int:
    return round(at_s * 1000)
