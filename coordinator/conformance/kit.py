"""What a scenario has in hand: a running agent, a script opposite it, orders with everything they need.

Scenarios follow one another on one agent. Each leaves it idle: :meth:`Kit.settle` acknowledges whatever is left.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.conformance.artifacts import BATCH, HYPER, Artifacts, KitArtifact, Reference, reference
from coordinator.conformance.connection import AgentDriver, Connection
from coordinator.conformance.findings import Failed, NotApplicable, expect
from coordinator.conformance.script import Script, Seen
from coordinator.conformance.site import Site
from coordinator.identity.signing import SigningKey
from edge.contracts.envelope import seal
from edge.contracts.errors import ApportionError, ExportRefused
from edge.contracts.messages import Hello
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.contracts.tensor_file import decode_tensors, encode_tensors

MAX_REL_L2 = 1e-4
"""Of an update's tensor, from the reference's; ten times as much where batch norm divides by small variances."""


@dataclass(frozen=True)
class Job:
    """An order and what it names."""

    artifact: KitArtifact
    order: WorkOrder
    weights: bytes
    constants: bytes | None

    @property
    def id(self) -> str:
        """The order's assignment id."""
        return self.order.assignment_id


class Kit:
    """One agent under test.

    Args:
        patience: multiplies every time that the agent is given; above 1 for slow devices.
        plain_bulk: blobs over HTTP in clear, as a page of this machine has them.
    """

    def __init__(
        self, site: Site, driver: AgentDriver, artifacts: Artifacts, *, patience: float = 1.0, plain_bulk: bool = False
    ) -> None:
        self.site = site
        self.script: Script = site.script
        self.driver = driver
        self.artifacts = artifacts
        self.patience = patience
        self.plain_bulk = plain_bulk
        self.hello: Hello | None = None
        self._running: Connection | None = None
        self._rounds = 0
        self._open: list[str] = []

    # the agent

    def agent(self, connection: Connection | None = None) -> Hello:
        """The hello of a running agent, started anew where it does not run with ``connection``."""
        wanted = connection or self.site.connection
        if self._running != wanted or self.hello is None:
            if self._running is not None:
                self.stop()
            return self.start(wanted)
        return self.hello

    def start(self, connection: Connection | None = None) -> Hello:
        """Start the agent and wait for its hello."""
        mark = self.script.mark()
        self._running = connection or self.site.connection
        self.driver.start(self._running)
        found: Hello = self.wait("hello", since=mark, timeout_s=60).body
        there = self._running.examples()
        if found.num_examples < there:
            # Its owner may be adding them now: then it says hello again.
            with contextlib.suppress(Failed):
                found = self.wait("hello", since=mark, timeout_s=60, where=lambda body: body.num_examples == there).body
        self.hello = found
        return found

    def stop(self) -> None:
        """End the agent in good order.

        Raises:
            NotApplicable: it can only be ended by hand; also :meth:`kill`.
        """
        self.driver.stop()
        self.hello = self._running = None

    def kill(self) -> None:
        """End the agent at once."""
        self.driver.kill()
        self.hello = self._running = None

    def asked(self) -> Hello:
        """What the agent says of itself now, asked by an empty hello."""
        mark = self.script.mark()
        self.script.send("hello", {})
        found: Hello = self.wait("hello", since=mark).body
        return found

    # orders

    def job(
        self,
        name: str = "plain",
        *,
        seed: int = 1,
        change: Callable[[KitArtifact], bytes] | None = None,
        **changes: Any,
    ) -> Job:
        """A new order for the artifact ``name`` with all that it needs, served by the script.

        Args:
            seed: of the weights.
            change: gives another manifest's bytes than the artifact's.
            changes: fields of the order.
        """
        try:
            artifact = self.artifacts.get(name)
        except ExportRefused as error:
            runtime = self.site.connection.runtime
            raise NotApplicable(f"no artifact '{name}' for {runtime}: {error}") from error
        manifest = artifact.data if change is None else change(artifact)
        tensors, fixed = artifact.weights(seed)
        weights, constants = encode_tensors(tensors), encode_tensors(fixed) if fixed else None
        blobs = [manifest, *artifact.files.values(), weights, *([constants] if constants else [])]
        self.script.blobs |= {_sha(data): data for data in blobs}
        self._rounds += 1
        connection = self.site.connection
        values: dict[str, Any] = {
            "assignment_id": assignment_id(connection.federation, self._rounds, connection.device, 0),
            "federation": connection.federation,
            "device": connection.device,
            "round": self._rounds,
            "attempt": 0,
            "artifact": _ref(manifest),
            "weights": _ref(weights),
            "constants": _ref(constants) if constants else None,
            "schedule": Schedule(steps=3),
            "batch": BATCH,
            "last_batch": "drop",
            # Above 2^63: a language without unsigned numbers has to mind it.
            "data_seed": 0xF123_4567_89AB_CD00 + self._rounds,
            "hyper": HYPER,
            "upload": artifact.upload(),
            "deadline_s": 600.0,
            "artifact_signature": self.key.manifest(manifest),
        }
        return Job(artifact, WorkOrder(**(values | changes)), weights, constants)

    @property
    def key(self) -> SigningKey:
        """The key that the agent trusts."""
        return self.site.key

    def order(self, job: Job, *, key: SigningKey | None = None) -> int:
        """Send the order, signed; the mark before it."""
        return self.order_bytes(job, seal("order", job.order, sign=(key or self.key).order))

    def order_bytes(self, job: Job, payload: bytes) -> int:
        """Send ``payload`` as the message that orders ``job``; the mark before it."""
        mark = self.script.mark()
        if job.id not in self._open:
            self._open.append(job.id)
        self.script.send_bytes("order", payload)
        return mark

    def wait(
        self,
        *kinds: str,
        since: int,
        timeout_s: float = 15.0,
        where: Callable[[Any], bool] = lambda body: True,
        count: int = 1,
    ) -> Seen:
        """As :meth:`Script.wait`, with this agent's patience."""
        return self.script.wait(*kinds, since=since, timeout_s=timeout_s * self.patience, where=where, count=count)

    def answer(self, job: Job, *kinds: str, since: int, timeout_s: float = 15.0, count: int = 1) -> Any:
        """Body of the next message of ``kinds`` about ``job``.

        Raises:
            Failed: none comes, or the device refuses although that is not among ``kinds``.
        """

        def is_about(body: Any) -> bool:
            return getattr(body, "assignment_id", None) == job.id

        wanted = kinds if "refuse" in kinds or "error" in kinds else (*kinds, "refuse")
        found = self.wait(*wanted, since=since, timeout_s=timeout_s, where=is_about, count=count)
        if found.kind not in kinds:
            raise Failed(f"refused with {found.body.code}: {found.body.reason[:200]}")
        return found.body

    def refusal(self, job: Job, *codes: str, since: int) -> str:
        """What the refusal of ``job`` says, which has one of ``codes``, any where none is named."""
        body = self.answer(job, "refuse", "report", since=since)
        if not hasattr(body, "code"):
            raise Failed("it was carried out instead of refused")
        expect(not codes or body.code in codes, f"refused with {body.code!r}, not {' or '.join(codes)}: {body.reason}")
        expect(bool(body.code and body.reason), f"code {body.code!r}, reason {body.reason!r}: both are wanted")
        return f"{body.code}: {body.reason[:90]}"

    # results

    def finish(self, job: Job, *, since: int, timeout_s: float = 60.0) -> str:
        """Wait for the report of ``job`` and hold its update against the reference; what was seen."""
        report = self.answer(job, "report", since=since, timeout_s=timeout_s)
        return self.check(job, report)

    def train(self, name: str = "plain", **changes: Any) -> str:
        """Order, wait, check."""
        self.agent()
        job = self.job(name, **changes)
        return self.finish(job, since=self.order(job))

    def check(self, job: Job, report: Any) -> str:
        """What was seen of a finished ``job``: differences from the reference.

        Raises:
            Failed: it is another result, or a report that does not fit it.
        """
        wanted = self.reference(job)
        data = bytes(self.script.uploads.get(job.id, b""))
        digest = _sha(data)
        expect(digest == report.update.digest, f"update of {len(data)} bytes has digest {digest[:12]}, not as reported")
        try:
            tensors = decode_tensors(data, where="update")
        except ApportionError as error:
            raise Failed(f"the update cannot be read: {error}") from error
        expect(tensors.keys() == set(job.order.upload), f"holds {sorted(tensors)}, ordered {sorted(job.order.upload)}")
        limit = MAX_REL_L2 * (10 if job.artifact.name == "batch-norm" else 1)
        worst, where = 0.0, "-"
        for name, value in tensors.items():
            right = wanted.tensors[name]
            expect((value.shape, value.dtype) == (right.shape, right.dtype), f"{name} is {value.dtype}{value.shape}")
            difference = relative_l2(value, right)
            if not difference <= worst:
                worst, where = difference, name
        expect(report.steps == wanted.steps, f"{report.steps} steps reported, {wanted.steps} ordered")
        expect(worst <= limit, f"{where} is {worst:.2e} from the reference (relative L2), at most {limit:.0e}")
        away = abs(report.loss - wanted.loss) / max(abs(wanted.loss), 1e-6)
        expect(away <= limit, f"loss {report.loss:.6g} reported, {wanted.loss:.6g} expected")
        same = "same bytes" if digest == wanted.digest else "other bytes"
        return f"{wanted.steps} steps, loss {report.loss:.5f}, relative L2 {worst:.1e}, {same}"

    def reference(self, job: Job) -> Reference:
        """What ``job`` has to give."""
        data = Path((self._running or self.site.connection).data)
        return reference(job.artifact, job.order, job.weights, job.constants, data)

    def settle(self) -> None:
        """Have the agent forget what is left of a scenario, and answer as usual again."""
        self.script.reset()
        self.site.open()
        for identity in self._open:
            with contextlib.suppress(ApportionError):
                self.script.acknowledge(identity, False, "stale-round")
        self._open.clear()


def relative_l2(value: np.ndarray, right: np.ndarray) -> float:
    """|value - right| / |right| in float64; infinite where it is not a number."""
    difference = float(np.linalg.norm(value.astype(np.float64) - right.astype(np.float64)))
    found = difference / max(float(np.linalg.norm(right.astype(np.float64))), 1e-12)
    return found if np.isfinite(found) else float("inf")


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _ref(data: bytes) -> BlobRef:
    return BlobRef(_sha(data), len(data), "raw", len(data))
