"""What an update costs on the wire: ``python -m benchmarks.update_wire`` prints bytes over payload as JSON lines.

A real agent over a link that counts and can be cut: 20 MB of weights come down, 20 MB of update go up, in blocks over
Mosquitto or over HTTPS. Cuts reset every connection of the link, at places drawn from the seed, as many each way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from torch import nn

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import server_files
from coordinator.brokers.opening import open_broker
from coordinator.cli.bench_device import DEVICE, FEDERATION, BenchInputs, bench_order, exported_inputs
from coordinator.cli.model_arguments import ModelArguments
from coordinator.config.run_config import BrokerConfig
from coordinator.identity.authority import Authority
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.local_devices.processes import connection_address
from coordinator.messaging.cohort import Cohort
from coordinator.messaging.event_queue import EventQueue
from coordinator.messaging.inbox import Inbox
from coordinator.messaging.message_loop import MessageLoop
from coordinator.web.device_services import BlobService
from edge.agent import Agent
from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.serving.publisher import Publisher
from edge.supervisor.outbox import farewell_message
from edge.supervisor.settings import AgentSettings
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.broker_address import BrokerAddress
from edge.transport.mqtt import MqttTransport

FEATURES, CLASSES = 65_790, 76
TIMEOUT_S = 240.0
UP, DOWN = "up", "down"
_RESET = struct.pack("ii", 1, 0)


def large(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One layer of 20.0 MB."""
    return nn.Linear(input_shape[0], classes)


class Link:
    """The device's way to broker and blobs: counts both ways, and breaks after given numbers of bytes."""

    def __init__(self, cuts: dict[str, list[int]]) -> None:
        self.bytes = {UP: 0, DOWN: 0}
        self.cuts = 0
        self._left = {way: sorted(places) for way, places in cuts.items()}
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listeners: list[socket.socket] = []

    def way_to(self, port: int) -> int:
        """The port that leads to ``port`` of this machine."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """No connections any more."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._reset()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                with self._lock:
                    self._open |= {near, far}
                for pair, way in (((near, far), UP), ((far, near), DOWN)):
                    threading.Thread(target=self._forward, args=(*pair, way), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                with self._lock:
                    self.bytes[way] += len(data)
                    is_cut = bool(self._left[way]) and self.bytes[way] >= self._left[way][0]
                    if is_cut:
                        self._left[way].pop(0)
                        self.cuts += 1
                if is_cut:
                    self._reset()
                    return
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _reset(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)


def measure(inputs: BenchInputs, folder: Path, *, is_https: bool, cuts: int, seed: int) -> dict[str, object]:
    """Bytes over payload of one order, carried out by a real agent."""
    order = bench_order(inputs, 0, 1, 1)
    size = inputs.weights.stat().st_size
    drawn = random.Random(seed)
    link = Link({way: [drawn.randint(size // 20, size * 19 // 20) for _ in range(cuts)] for way in (DOWN, UP)})
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(Ledger.create(folder / "ledger.sqlite", federation=FEDERATION, config="", seed=0))
        blobs = BlobStore(folder / "blobs")
        files = [inputs.artifact / file.name for file in inputs.manifest.files]
        for path in (inputs.artifact / "manifest.json", inputs.weights, *files):
            ledger.blobs.add(blobs.put_file(path), path.stat().st_size)
        entry = Assignment(
            assignment_id=order.assignment_id,
            round=0,
            attempt=0,
            device=DEVICE,
            level="bench",
            cut={},
            artifact_digest=order.artifact.digest,
            weights_digest=order.weights.digest,
            order=encode_msgpack(order),
        )
        ledger.rounds.plan(0, 0, deadline_s=TIMEOUT_S, assignments=[entry])
        ledger.rounds.move(0, 0, "published")
        Authority.create(folder / "identity").close()
        certificates = server_files(folder / "identity", "localhost")
        service = stack.enter_context(BlobService(blobs, "https://localhost:0", *certificates))
        port = urlsplit(service.url_for(DEVICE, 1)).port or 0
        place = f"https://localhost:{link.way_to(port)}/"

        def bulk(device: str, valid_s: float) -> str:
            return service.url_for(device, valid_s).replace(f"https://localhost:{port}/", place)

        address = connection_address(stack.enter_context(open_broker(BrokerConfig(url="mosquitto"), folder / "broker")))
        transport = MqttTransport(
            address, client_id="bench-coordinator", subscriptions=(topics.coordinator_filter(FEDERATION),)
        )
        publisher = Publisher(
            FEDERATION,
            blobs,
            transport,
            bulk=bulk if is_https else None,
            upload_to=(lambda found: f"{found}upload/") if is_https else None,
            account=service.account,
        )
        stack.callback(publisher.close)
        inbox = Inbox(
            FEDERATION,
            ledger=ledger,
            blobs=blobs,
            cohort=Cohort(),
            publisher=publisher,
            remaining_s=lambda: TIMEOUT_S,
            say=lambda text: None,
        )
        service.take_updates(inbox.uploads)
        events = EventQueue()
        stack.enter_context(MessageLoop(inbox, events))
        transport.start(events.put)
        stack.callback(transport.stop)
        near = by_way_of(address, link.way_to(address.port))
        started = time.monotonic()
        run_agent(near, inputs, folder)
        link.close()
        (done,) = ledger.assignments.of_attempt(0, 0)
        if done.state != "reported":
            raise SystemExit(f"the assignment is {done.state}: {done.reason}")
        figures: dict[str, object] = {"way": "https" if is_https else "mqtt", "cuts": link.cuts, "seed": seed}
        rows = service.account.take()
        for way in (DOWN, UP):
            payload = sum(row.payload_bytes for row in rows if row.direction == way)
            wire = sum(row.wire_bytes for row in rows if row.direction == way)
            figures |= {
                f"{way}_payload": payload,
                f"{way}_account": round(wire / payload, 4),
                f"{way}_link": round(link.bytes[way] / size, 4),
            }
        return figures | {"seconds": round(time.monotonic() - started, 1)}


def by_way_of(address: BrokerAddress, port: int) -> BrokerAddress:
    """The same broker by way of the link."""
    return BrokerAddress(host="127.0.0.1", port=port, username=address.username, password=address.password)


def run_agent(address: BrokerAddress, inputs: BenchInputs, folder: Path) -> None:
    """A real agent until its one assignment is acknowledged."""
    settings = AgentSettings(
        federation=FEDERATION,
        device=DEVICE,
        data=str(inputs.data),
        python=sys.executable,
        once=True,
        bulk_tls=lambda: ssl.create_default_context(cafile=str(folder / "identity" / "ca.pem")),
    )
    transport = MqttTransport(
        address,
        client_id=DEVICE,
        subscriptions=topics.device_filters(FEDERATION, DEVICE),
        will=farewell_message(FEDERATION, DEVICE, "connection lost"),
    )
    Agent(settings, transport, ArtifactStore(folder / "store")).run()


def main() -> int:
    """Prints one JSON object per way and number of cuts: medians over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cuts", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        arguments = ModelArguments("benchmarks.update_wire:large", (FEATURES,), CLASSES, 2)
        inputs = exported_inputs(arguments, "onnxruntime", root)
        for is_https in (False, True):
            for cuts in dict.fromkeys((0, chosen.cuts)):
                runs = []
                for seed in range(chosen.runs):
                    with tempfile.TemporaryDirectory() as folder:
                        runs.append(measure(inputs, Path(folder), is_https=is_https, cuts=cuts, seed=seed))
                        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
                keys = [f"{way}_{what}" for way in (DOWN, UP) for what in ("account", "link")] + ["seconds"]
                medians = {key: statistics.median(float(str(run[key])) for run in runs) for key in keys}
                print(json.dumps({"way": runs[0]["way"], "cuts": cuts, **medians}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
