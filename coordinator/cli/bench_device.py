"""One real agent, one order, one broker: what a device's two processes reach while they train an artifact."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.opening import open_broker
from coordinator.config.run_config import BrokerConfig
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.local_devices.control_groups import UNLIMITED, CeilingReport, Limits
from coordinator.local_devices.processes import LocalDevice, LocalDevices, connection_address
from coordinator.messaging.cohort import Cohort
from coordinator.messaging.inbox import Inbox
from coordinator.messaging.message_loop import MessageLoop
from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import DeadlineExpired, DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.contracts.report import TrainReport
from edge.contracts.streams import self_test_value
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import concrete_shape
from edge.serving.publisher import Publisher
from edge.transport.base import Event
from edge.transport.mqtt import MqttTransport

if TYPE_CHECKING:
    from torch import nn

    from coordinator.cli.model_arguments import ModelArguments, Prepared
    from export.language.causal_model import CausalModel

FEDERATION = "bench"
DEVICE = "bench-device"
EXAMPLE_BATCHES = 4
ORDER_STEPS = 20
LANGUAGE_STEPS = 4
"""Of a language model, each of which takes seconds."""
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class BenchInputs:
    """Files both sides read: the artifact's folder, initial weights, examples of the right shape, and of a language
    model the base and what an order calls it."""

    manifest: ArtifactManifest
    artifact: Path
    weights: Path
    data: Path
    base: Path | None = None
    base_ref: BlobRef | None = None

    @property
    def reads_features(self) -> bool:
        """Whether the artifact's steps read features of frozen blocks."""
        return bool(self.manifest.specs("features"))


def exported(arguments: ModelArguments, runtime: str, artifact: Path) -> tuple[Prepared, ArtifactManifest]:
    """What a command line's model is, and its artifact in the new folder ``artifact``.

    Raises:
        ExportRefused, ParityError, ConfigError: as :func:`exported_inputs`.
    """
    from export.bundle import export_artifact

    prepared = arguments.prepare()
    manifest = export_artifact(
        prepared.module,
        prepared.step,
        artifact,
        build=prepared.build,
        classes=prepared.class_names,
        runtime=runtime,
    )
    return prepared, manifest


def exported_inputs(arguments: ModelArguments, runtime: str, folder: Path) -> BenchInputs:
    """The artifact of a command line's model for ``runtime`` in ``folder``, with weights and examples.

    Raises:
        ExportRefused: the runtime cannot train the model; also ParityError.
        ConfigError: an argument that cannot be.
    """
    prepared, manifest = exported(arguments, runtime, folder / "artifact")
    if not manifest.specs("mapped"):
        return write_inputs(folder, manifest, prepared.module)
    return _write_language_inputs(folder, manifest, prepared)


def _write_language_inputs(folder: Path, manifest: ArtifactManifest, prepared: Prepared) -> BenchInputs:
    """A random base, formula factors and random examples beside the artifact in ``folder``."""
    from coordinator.language.base import write_base
    from coordinator.language.random_weights import random_values

    module = cast("CausalModel", prepared.dense)
    base, weights = folder / "base.safetensors", folder / "weights.safetensors"
    write_base(base, module, random_values(module.architecture, 0))
    factors = manifest.specs("parameter", "frozen")
    weights.write_bytes(encode_tensors({s.name: self_test_value(s, 0, 1) for s in factors}))
    with base.open("rb") as file:
        digest, size = hashlib.file_digest(file, "sha256").hexdigest(), base.stat().st_size
    reference = BlobRef(digest, size, "raw", size)
    return BenchInputs(manifest, folder / "artifact", weights, _examples(folder, manifest), base, reference)


def write_inputs(folder: Path, manifest: ArtifactManifest, module: nn.Module) -> BenchInputs:
    """Initial weights of ``module`` and random examples beside the artifact in ``folder``."""
    import numpy as np

    from coordinator.submodels.build import module_tensors

    state = {s.name for s in manifest.specs("parameter", "frozen", "buffer")}
    weights = folder / "weights.safetensors"
    values = {k: v for k, v in module_tensors(module).items() if k in state}
    # Masks that keep everything: a dense step under a mask takes as long whatever the mask is.
    masks = {s.name: np.ones(concrete_shape(s), np.bool_) for s in manifest.specs("grad_mask")}
    weights.write_bytes(encode_tensors(values | masks))
    return BenchInputs(manifest, folder / "artifact", weights, _examples(folder, manifest))


def _examples(folder: Path, manifest: ArtifactManifest) -> Path:
    """A folder of random examples."""
    import numpy as np

    generator = np.random.default_rng(0)
    count, spec = manifest.batch * EXAMPLE_BATCHES, manifest.input
    shape = (count, *spec.shape)
    x = (
        generator.integers(0, spec.vocabulary, shape)
        if spec.dtype == "int64"
        else generator.standard_normal(shape).astype(np.float32)
    )
    target = next(s for s in manifest.tensors if s.role == "target")
    y = generator.integers(0, len(manifest.classes), (count, *(int(size) for size in target.shape[1:])))
    data = folder / "data"
    data.mkdir()
    np.savez(data / "data.npz", x=x, y=y)
    return data


def bench_order(inputs: BenchInputs, number: int, steps: int, threads: int) -> WorkOrder:
    """An order of ``steps`` training steps on the bench's artifact; ``number`` makes it a new one."""
    manifest_bytes = (inputs.artifact / "manifest.json").read_bytes()
    weights_bytes = inputs.weights.read_bytes()
    values = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "frobenius_lambda": 1e-4, "clip_norm": 5.0}
    values |= {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    hyper = {s.name: values[s.name] for s in inputs.manifest.specs("hyper") if s.name in values}
    return WorkOrder(
        assignment_id=assignment_id(FEDERATION, number, DEVICE, 0),
        federation=FEDERATION,
        device=DEVICE,
        round=number,
        attempt=0,
        artifact=_ref(manifest_bytes),
        weights=_ref(weights_bytes),
        schedule=Schedule(steps=steps),
        batch=inputs.manifest.batch,
        last_batch="drop",
        data_seed=number,
        hyper=hyper,
        upload=tuple(s.name for s in inputs.manifest.specs("parameter", "buffer")),
        threads=threads,
        constants=inputs.base_ref,
    )


def _ref(data: bytes) -> BlobRef:
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), "raw", len(data))


@dataclass(frozen=True)
class AgentRun:
    """What an agent reported of one order, and what its ceiling did; None without one."""

    report: TrainReport
    ceiling: CeilingReport | None = None


def measure_agent(inputs: BenchInputs, folder: Path, threads: int, limits: Limits = UNLIMITED) -> AgentRun:
    """A real agent carries out one order over the embedded broker, both of its processes below ``limits``.

    Raises:
        ConfigError: limits that this machine cannot enforce.
        DeviceRefused: the agent refused the order.
        DeadlineExpired: no report in time.
    """
    order = bench_order(inputs, 0, LANGUAGE_STEPS if inputs.base else ORDER_STEPS, threads)
    device_folder = folder / "device"
    shutil.copytree(inputs.data, device_folder / "data")
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(Ledger.create(folder / "ledger.sqlite", federation=FEDERATION, config="", seed=0))
        blobs = BlobStore(folder / "blobs")
        for path in (inputs.artifact / "manifest.json", inputs.weights, *([inputs.base] if inputs.base else [])):
            ledger.blobs.add(blobs.put_file(path), path.stat().st_size)
        for file in inputs.manifest.files:
            ledger.blobs.add(blobs.put_file(inputs.artifact / file.name), file.size)
        ledger.rounds.plan(0, 0, deadline_s=TIMEOUT_S, assignments=[_assignment(order)])
        ledger.rounds.move(0, 0, "published")
        address = stack.enter_context(open_broker(BrokerConfig(), folder / "broker"))
        transport = MqttTransport(
            connection_address(address),
            client_id="bench-coordinator",
            subscriptions=(topics.coordinator_filter(FEDERATION),),
        )
        publisher = Publisher(FEDERATION, blobs, transport)
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
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        stack.enter_context(MessageLoop(inbox, events))
        transport.start(events.put)
        stack.callback(transport.stop)
        runtime = inputs.manifest.runtime
        device = LocalDevice(DEVICE, device_folder, budget_bytes=0, threads=threads, runtime=runtime, limits=limits)
        devices = stack.enter_context(LocalDevices([device], address, FEDERATION))
        report = _await_report(ledger, inbox, device_folder)
        return AgentRun(report, devices.ceilings().get(DEVICE))


def _assignment(order: WorkOrder) -> Assignment:
    return Assignment(
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


def _await_report(ledger: Ledger, inbox: Inbox, folder: Path) -> TrainReport:
    give_up_at = time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_at:
        (entry,) = ledger.assignments.of_attempt(0, 0)
        if entry.state == "reported":
            return ledger.updates.of_attempt(0, 0)[0].report
        if entry.state in ("refused", "rejected"):
            raise DeviceRefused(f"the agent's work is {entry.state} ({entry.code}): {entry.reason}")
        inbox.wait(1.0)
    raise DeadlineExpired(f"no report within {TIMEOUT_S:g} s; the agent's log is {folder / 'agent.log'}")
