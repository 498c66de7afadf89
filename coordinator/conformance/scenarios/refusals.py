"""What an agent must not take: each is answered with a refusal that has a code and a reason, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from coordinator.conformance.artifacts import KitArtifact
from coordinator.conformance.findings import expect
from coordinator.conformance.kit import Kit
from coordinator.conformance.registry import scenario
from edge.contracts.plan import Schedule, Turn

REFUSALS = "Refusals"


@scenario(REFUSALS)
def order_over_the_budget(kit: Kit) -> str:
    """More memory than the owner allows: both figures come back."""
    kit.agent()
    budget = kit.site.connection.budget_mb * 2**20
    job = kit.job("masked", peak_bytes=budget + 1)
    mark = kit.order(job)
    seen = kit.refusal(job, "device-refused", since=mark)
    body = kit.answer(job, "refuse", since=mark)
    expect(body.needed_bytes == budget + 1, f"needed_bytes {body.needed_bytes}, the order says {budget + 1}")
    expect(0 < body.budget_bytes <= budget, f"budget_bytes {body.budget_bytes}, told to keep {budget}")
    return seen


@scenario(REFUSALS)
def order_with_an_unknown_program(kit: Kit) -> str:
    """A turn names a program that the artifact does not have."""
    kit.agent()
    job = kit.job("masked", schedule=Schedule(steps=1, turns=(Turn("train_nowhere"),)))
    return kit.refusal(job, since=kit.order(job))


@scenario(REFUSALS)
def order_without_a_hyper_parameter(kit: Kit) -> str:
    """The program takes a scalar that the order does not give."""
    kit.agent()
    job = kit.job("masked", hyper={"lr": 0.1})
    return kit.refusal(job, "device-refused", since=kit.order(job))


@scenario(REFUSALS)
def order_with_a_schedule_that_never_ends(kit: Kit) -> str:
    """Neither epochs nor steps."""
    kit.agent()
    job = kit.job("masked", schedule=Schedule())
    return kit.refusal(job, "device-refused", since=kit.order(job))


@scenario(REFUSALS)
def artifact_for_another_runtime(kit: Kit) -> str:
    """The manifest names a runtime that the agent does not have."""

    def other(artifact: KitArtifact) -> bytes:
        return msgspec.structs.replace(artifact.manifest, runtime="abacus").to_bytes()

    kit.agent()
    job = kit.job("masked", change=other)
    return kit.refusal(job, "device-refused", since=kit.order(job))


@scenario(REFUSALS)
def manifest_of_an_unknown_version(kit: Kit) -> str:
    """Its schema is of a later version."""

    def later(artifact: KitArtifact) -> bytes:
        return msgspec.structs.replace(artifact.manifest, schema="apportion.manifest/9").to_bytes()

    kit.agent()
    job = kit.job("masked", change=later)
    return kit.refusal(job, "unsupported-version", since=kit.order(job))


@scenario(REFUSALS)
def manifest_with_a_dangerous_file_name(kit: Kit) -> str:
    """A file name that leads out of a folder."""

    def climbing(artifact: KitArtifact) -> bytes:
        manifest = json.loads(artifact.data)
        name = manifest["files"][0]["name"]
        manifest["files"][0]["name"] = "../escaped"
        for program in manifest["programs"]:
            program["file"] = "../escaped" if program["file"] == name else program["file"]
        return json.dumps(manifest).encode()

    kit.agent()
    job = kit.job("masked", change=climbing)
    return kit.refusal(job, "bad-message", since=kit.order(job))


@scenario(REFUSALS)
def blob_that_the_coordinator_does_not_have(kit: Kit) -> str:
    """An error of code unknown-blob about what is being fetched ends the assignment."""
    kit.agent()
    job = kit.job("masked", seed=20)
    del kit.script.blobs[job.order.weights.digest]
    return kit.refusal(job, "unknown-blob", since=kit.order(job))


@scenario(REFUSALS)
def data_that_cannot_be_read(kit: Kit) -> str:
    """A damaged file of data is told in the hello, and orders are refused."""
    folder = kit.site.folder / "damaged"
    folder.mkdir(exist_ok=True)
    whole = next(iter(sorted(Path(kit.site.connection.data).glob("*.npz")))).read_bytes()
    (folder / "part.npz").write_bytes(whole[: len(whole) // 2])
    hello = kit.agent(kit.site.with_data(folder, "state-damaged"))
    expect(hello.num_examples == 0, f"{hello.num_examples} examples in a damaged file")
    expect(bool(hello.data_error), "data_error of the hello is empty")
    job = kit.job("masked")
    seen = kit.refusal(job, "bad-data", since=kit.order(job))
    kit.stop()
    return seen


@scenario(REFUSALS)
def data_of_another_shape(kit: Kit) -> str:
    """Examples that the artifact does not take are refused, or they are told before."""
    import numpy as np

    folder = kit.site.folder / "misshapen"
    folder.mkdir(exist_ok=True)
    np.savez(folder / "part.npz", x=np.zeros((9, 7), np.float32), y=np.zeros(9, np.int64))
    kit.agent(kit.site.with_data(folder, "state-misshapen"))
    job = kit.job("masked")
    seen = kit.refusal(job, "bad-data", since=kit.order(job))
    kit.stop()
    return seen
