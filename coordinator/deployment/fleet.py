"""The final model on its way to the devices of a run: one more round, in which they install it and train nothing.

Orders are signed, blobs travel by digest in blocks that the devices ask for, and what became of each device is in the
ledger, as in every round. A device's policy may refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.ledger.records import Assignment, Round
from coordinator.rounds.attempts import next_attempt
from coordinator.rounds.collecting import Collecting
from coordinator.rounds.federation import Federation
from coordinator.rounds.final_scores import DEPLOYMENT
from coordinator.rounds.remote_devices import RemoteDevices
from coordinator.rounds.round import publish
from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import LedgerError
from edge.contracts.inference import MANIFEST_NAME, InferenceManifest
from edge.contracts.installation import ABILITY, Installation
from edge.contracts.manifest import ArtifactFile, ArtifactManifest, Cost, Parity, SelfTest
from edge.contracts.messages import Hello
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id, read_order
from edge.inference.predictor import read_inference_folder

FORMAT = "inference"
"""Of an artifact that is a description of a deployed model, not of a step."""


@dataclass(frozen=True)
class Deployable:
    """A model as devices of one runtime are sent it.

    Attributes:
        artifact: describes it; ``model`` is its file.
        takes_own: tensors that a device trained for itself can take the place of the model's.
    """

    runtime: str
    artifact: BlobRef
    model: BlobRef
    takes_own: bool


def deploy_to_fleet(federation: Federation, folders: Mapping[str, Path], *, name: str, wait_s: float) -> dict[str, Any]:
    """Have the devices that are here install the model; which did, which refused and why, which were silent.

    A deployment that was interrupted goes on.

    Args:
        folders: runtime -> what ``apportion deploy`` wrote for it, in the order in which they are preferred.
        name: of the release, for people.
        wait_s: how long devices are waited for; those of the cohort, until they are here.

    Raises:
        LedgerError: a round of the run is open: it has not ended.
        DeadlineExpired: no device came.
    """
    current = federation.ledger.rounds.open() or _plan(federation, folders, name, wait_s)
    entries = federation.ledger.assignments.of_attempt(current.round, current.attempt)
    if not all(read_order(entry.order).installation for entry in entries):
        raise LedgerError(f"round {current.round + 1} of the run is open; go on with: apportion resume RUN_DIR")
    if current.state != "aggregating":
        publish(federation, current)
        if current.state in ("planned", "published"):
            federation.ledger.rounds.move(current.round, current.attempt, "collecting")
        collecting = Collecting(federation, current)
        while not (over := collecting.why_over()):
            collecting.wait()
        collecting.let_go(over)
    return _finish(federation, current)


def _plan(federation: Federation, folders: Mapping[str, Path], name: str, wait_s: float) -> Round:
    last, devices = federation.ledger.rounds.last_committed(), federation.devices
    assert last is not None
    assert isinstance(devices, RemoteDevices)
    round_index = last.round + 1
    attempt = next_attempt(federation, round_index, least=1, what="deployment")
    models = [_stored(federation, runtime, folder) for runtime, folder in folders.items()]
    assignments = []
    for hello in devices.cohort.wait_for(federation.config.cohort.size, wait_s, least=1):
        model = next((model for model in models if model.runtime in hello.runtimes), None)
        why = "" if ABILITY in hello.abilities else "its agent is of a release that installs none"
        if model is None:
            why = f"no model for its runtime {', '.join(hello.runtimes)}"
        if why or model is None:
            federation.progress.say(f"device {hello.device}: {why}; left out")
            continue
        assignments.append(_assignment(federation, hello, model, round_index, attempt, name))
    federation.ledger.rounds.plan(
        round_index, attempt, deadline_s=federation.config.cohort.deadline_s, assignments=assignments
    )
    planned = federation.ledger.rounds.open()
    assert planned is not None
    return planned


def _stored(federation: Federation, runtime: str, folder: Path) -> Deployable:
    """The parts of the model in ``folder`` as blobs, in the ledger."""
    manifest, path = read_inference_folder(folder)
    described = _store(federation, manifest.to_bytes())
    artifact = _store(federation, _artifact(manifest, described).to_bytes())
    takes_own = manifest.precision == "float32" and not manifest.output
    return Deployable(runtime, artifact, _store(federation, path.read_bytes()), takes_own)


def _store(federation: Federation, data: bytes) -> BlobRef:
    digest = federation.blobs.put(data)
    federation.ledger.blobs.add(digest, len(data))
    return BlobRef(digest, len(data), "raw", len(data))


def _artifact(manifest: InferenceManifest, described: BlobRef) -> ArtifactManifest:
    """What a device fetches and checks first: no programs, and the model's description as its only file."""
    return ArtifactManifest(
        format=FORMAT,
        runtime=manifest.runtime,
        minimum_runtime_version=manifest.minimum_runtime_version,
        programs=(),
        tensors=(),
        files=(ArtifactFile(MANIFEST_NAME, described.digest, described.size),),
        batch=1,
        loss="",
        optimizer="",
        norm="running",
        input=manifest.input,
        classes=manifest.classes,
        cost=Cost(0, 0, 0, 0, 0, 0, 1),
        self_test=SelfTest("splitmix64-uniform/1", 0, 1, {}, (), 0.0),
        parity=Parity(0.0, 0.0, 0.0, 0.0, 0),
        build={},
        export_key="",
    )


def _assignment(
    federation: Federation, hello: Hello, model: Deployable, round_index: int, attempt: int, name: str
) -> Assignment:
    before = federation.ledger.assignments.latest_of(hello.device)
    personal = federation.config.personal
    # What it trained for itself has the shapes of its own cut.
    fits = before is not None and not before.cut and model.takes_own and bool(personal.layers or personal.fine_tune)
    order = WorkOrder(
        assignment_id=assignment_id(federation.name, round_index, hello.device, attempt, federation.ledger.nonce),
        federation=federation.name,
        run=federation.ledger.nonce,
        method=federation.config.method.name,
        device=hello.device,
        round=round_index,
        attempt=attempt,
        artifact=model.artifact,
        weights=model.model,
        schedule=Schedule(turns=()),
        batch=1,
        last_batch="keep",
        data_seed=0,
        hyper={},
        upload=(),
        installs=Installation(name=name, uses_own=fits),
    )
    return Assignment(
        assignment_id=order.assignment_id,
        round=round_index,
        attempt=attempt,
        device=hello.device,
        level="" if before is None else before.level,
        cut={} if before is None else before.cut,
        artifact_digest=model.artifact.digest,
        weights_digest=model.model.digest,
        order=encode_msgpack(order),
    )


def _finish(federation: Federation, current: Round) -> dict[str, Any]:
    """Write what became of the devices to the ledger, and give it back."""
    ledger, here = federation.ledger, (current.round, current.attempt)
    updates = ledger.updates.of_attempt(*here)
    entries = ledger.assignments.of_attempt(*here)
    found: dict[str, Any] = {
        "installed": [update.assignment.device for update in updates],
        "refused": {e.device: e.reason for e in entries if e.state in ("refused", "rejected")},
        "silent": [e.device for e in entries if e.state == "expired"],
        "bytes_down": sum(update.report.bytes_down for update in updates),
    }
    if not updates:
        ledger.rounds.move(*here, "abandoned", reason="no device installed the model")
        return found
    last = ledger.rounds.last_committed()
    assert last is not None
    if current.state != "aggregating":
        ledger.rounds.move(*here, "aggregating", participants=found["installed"])
    ledger.rounds.move(*here, "committed", model_digest=last.model_digest, metrics={DEPLOYMENT: found})
    federation.progress.record(DEPLOYMENT, round=current.round, **found)
    return found
