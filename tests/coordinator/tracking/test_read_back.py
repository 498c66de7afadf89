"""One run, stopped once and gone on with, as each tracker's own client reads it: the numbers of metrics.jsonl.

The trackers' packages take seconds to import and to close.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from coordinator.tracking.figures import round_figures
from coordinator.tracking.record import TrackingRecord
from tests.coordinator.tracking import site

pytestmark = [
    pytest.mark.slow,
    # Of the trackers' own packages, which are not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb", "opentelemetry": "opentelemetry"}


def needs(tracker: str) -> None:
    if importlib.util.find_spec(PACKAGES[tracker]) is None:
        pytest.skip(f"{PACKAGES[tracker]} is not installed here; pip install 'apportion[tracking]'")


class Collector(BaseHTTPRequestHandler):
    """Takes traces over OTLP and HTTP, as a collector does."""

    requests: list[bytes]

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.requests.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[bytes]]]:
    """The run's directory, and the requests that a collector got."""
    present = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)]
    handler = type("Handler", (Collector,), {"requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    run_dir = tmp_path_factory.mktemp("tracked") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("WANDB_MODE", "offline")
        site.run_twice(site.tracked_config(json.dumps(present), wait_s="60"), run_dir)
    server.shutdown()
    thread.join()
    server.server_close()
    return run_dir, handler.requests  # type: ignore[attr-defined]


def expected(run_dir: Path) -> dict[tuple[str, int], float]:
    """(name, step) -> number, of metrics.jsonl."""
    return {(n, step): v for step, entry in site.lines(run_dir).items() for n, v in round_figures(entry).items()}


def test_every_tracker_has_every_round(run: tuple[Path, list[bytes]]) -> None:
    record = TrackingRecord(run[0])
    assert len(expected(run[0])) == 60
    for name, package in PACKAGES.items():
        if importlib.util.find_spec(package):
            assert record.rounds(name) == 3, name


def test_tensorboard(run: tuple[Path, list[bytes]]) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run[0] / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    names = events.Tags()["scalars"]
    found = {(n, e.step): e.value for n in names if not n.startswith("round_device/") for e in events.Scalars(n)}
    wanted = {key: float(np.float32(value)) for key, value in expected(run[0]).items()}  # its curves are float32
    assert found == wanted
    assert any(name.startswith("round_device/") and name.endswith("/loss") for name in names)
    assert "run file/text_summary" in events.Tags()["tensors"]


def test_mlflow(run: tuple[Path, list[bytes]]) -> None:
    needs("mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run[0] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == TrackingRecord(run[0]).name("mlflow")
    assert found.info.status == "FINISHED"
    assert found.data.params["federation.seed"] == "5"
    assert found.data.tags["mlflow.runName"] == "run"
    histories = [client.get_metric_history(found.info.run_id, name) for name in found.data.metrics]
    numbers = {
        (m.key, m.step): m.value for history in histories for m in history if not m.key.startswith("round_device/")
    }
    assert numbers == expected(run[0])
    assert (
        sum(
            len(history)
            for history in histories
            if history[0].key.endswith("/loss") and "round_device/" in history[0].key
        )
        == 12
    )
    files = {f.path for f in client.list_artifacts(found.info.run_id)}
    assert files == {"summary.json", "model"}
    model = client.list_artifacts(found.info.run_id, "model")
    assert [f.path for f in model] == ["model/final.safetensors"]


def test_weights_and_biases(run: tuple[Path, list[bytes]]) -> None:
    needs("wandb")
    from wandb.proto import wandb_internal_pb2

    files = sorted(run[0].glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2  # one for each process; `wandb sync` puts them together by their id
    found: dict[tuple[str, int], float] = {}
    ids, configs = set(), []
    for path in files:
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
                configs.append({item.key: item.value_json for item in record.run.config.update})
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                step = items.pop("step")
                found |= {(name, step): v for name, v in items.items() if not name.startswith(("round_device/", "_"))}
    assert found == expected(run[0])
    assert ids == {TrackingRecord(run[0]).name("wandb")}
    assert configs[0]["federation.seed"] == '"5"'
    assert (files[-1].parent / "files" / "final.safetensors").is_file()


def test_opentelemetry_over_http(run: tuple[Path, list[bytes]]) -> None:
    needs("opentelemetry")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans = []
    for data in run[1]:
        request = ExportTraceServiceRequest()
        request.ParseFromString(data)
        spans += [s for resource in request.resource_spans for scope in resource.scope_spans for s in scope.spans]
    trace_id = TrackingRecord(run[0]).name("opentelemetry").partition("-")[0]
    assert {span.trace_id.hex() for span in spans} == {trace_id}
    rounds = [span for span in spans if span.name == "round"]
    numbers = [a.value.int_value for span in rounds for a in span.attributes if a.key == "apportion.round"]
    assert numbers == [1, 2, 3]
    assert sum(span.name == "assignment" for span in spans) == 12
    assert sum(span.name == "run" for span in spans) == 2


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a ``.wandb`` file: LevelDB's log format behind a head of 7 bytes.

    Source: wandb/sdk/internal/datastore.py of releases up to 0.2x, and core/pkg/transactionlog of later ones, whose
    Python package has no reader any more.
    """
    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
