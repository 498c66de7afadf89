"""Devices, files and links that are not as they should be: named with their reason, and the federation goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.rounds.federation import Federation
from edge.contracts import topics
from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import DeadlineExpired, PlanError
from edge.contracts.messages import Block
from edge.contracts.plan import WorkOrder
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


class FlippingTransport(InMemoryTransport):
    """A link that flips one bit of the first ``times`` blocks of every blob."""

    def __init__(self, broker: InMemoryBroker, federation: str, device: str, times: int) -> None:
        super().__init__(broker, subscriptions=topics.device_filters(federation, device))
        self.flipped: list[str] = []
        self._times = times

    def received(self, topic: str, payload: bytes) -> None:
        envelope = unseal(payload)
        if envelope.kind == "block":
            block = envelope.read(Block)
            if self.flipped.count(block.digest) < self._times:
                self.flipped.append(block.digest)
                data = block.data[:-1] + bytes([block.data[-1] ^ 4])
                payload = seal("block", Block(block.digest, block.offset, block.total, data))
        super().received(topic, payload)


def finish(device: list[HostileDevice], order: WorkOrder) -> None:
    device[0].finish(order)


def plain_device(stage: InProcessFederation, name: str, **options: int) -> HostileDevice:
    """A device that follows the protocol and does not train."""
    device = HostileDevice(stage.broker, stage.name, name, lambda order: finish([device], order), **options)
    return device


def test_budget_that_fits_no_cut_is_named_and_the_round_goes_on(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, min_reports=2, rounds=1)
    with (
        InProcessFederation(tmp_path, exports, text) as stage,
        plain_device(stage, "pi-1"),
        plain_device(stage, "pi-2"),
        plain_device(stage, "watch", budget_bytes=50 * 2**20),
    ):
        stage.run()
        assert stage.committed() == [(0, 0, ["pi-1", "pi-2"])]
        (line,) = stage.lines.having("watch", "fits no cut")
    assert "budget 50.0 MB fits no cut; the smallest is rank 1/4: 6" in line
    assert "raise the device's budget or add a smaller level" in line


def test_too_few_devices_that_fit_stop_the_run_with_the_reason(tmp_path: Path, exports: Path) -> None:
    with (
        InProcessFederation(tmp_path, exports, config_text(local=0, rounds=1)) as stage,
        plain_device(stage, "pi-1"),
        plain_device(stage, "pi-2"),
        plain_device(stage, "watch", budget_bytes=50 * 2**20),
    ):
        with pytest.raises(PlanError, match=r"2 of 3 devices can take part, cohort.min-reports is 3; raise budgets"):
            stage.run()


def test_missing_reports_repeat_the_round_with_the_next_attempt(tmp_path: Path, exports: Path) -> None:
    """One of two devices is silent at the first attempt, in the middle of three rounds."""
    with InProcessFederation(tmp_path, exports, config_text(local=0, size=2, rounds=3)) as stage:
        seen: list[tuple[int, int]] = []

        def behave(order: WorkOrder) -> None:
            seen.append((order.round, order.attempt))
            if (order.round, order.attempt) != (1, 0):
                forgetful.finish(order)

        def pass_the_deadline(point: str) -> None:
            entry = stage.ledger.rounds.open()
            is_first = entry is not None and (entry.round, entry.attempt) == (1, 0)
            if point == "collecting" and is_first and len(stage.ledger.updates.of_attempt(1, 0)) == 1:
                stage.federation.devices.clock.start(0.0)

        forgetful = HostileDevice(stage.broker, stage.name, "forgetful", behave)
        stage.on_point = pass_the_deadline
        with forgetful, plain_device(stage, "pi-1"):
            stage.run()
            assert stage.committed() == [
                (0, 0, ["forgetful", "pi-1"]),
                (1, 1, ["forgetful", "pi-1"]),
                (2, 0, ["forgetful", "pi-1"]),
            ]
            assert seen == [(0, 0), (1, 0), (1, 1), (2, 0)]
            states = [(r.round, r.attempt, r.state) for r in stage.ledger.rounds.all()]
            assert (1, 0, "abandoned") in states
            assert stage.lines.having("[ROUND 2/3] deadline: no report from forgetful")
            assert stage.lines.having("[ROUND 2/3] 1 reports, 2 needed: the round is repeated")


def test_round_that_never_gets_its_reports_stops_and_says_so(tmp_path: Path, exports: Path) -> None:
    with InProcessFederation(tmp_path, exports, config_text(local=0, size=2, rounds=1)) as stage:
        deaf = HostileDevice(stage.broker, stage.name, "deaf", lambda order: None)
        stage.on_point = lambda point: stage.federation.devices.clock.start(0.0) if point == "collecting" else None
        with deaf, plain_device(stage, "pi-1"):
            with pytest.raises(DeadlineExpired, match=r"round 1: 5 attempts ended with fewer than 2 reports") as caught:
                stage.run()
            assert "deaf expired (no report before the deadline)" in str(caught.value)
            assert [r.state for r in stage.ledger.rounds.all()] == ["abandoned"] * 5
            # Another process, once the cause is mended, goes on with attempts of its own.
            stage.on_point = lambda point: None
            stage.federation = replace(stage.federation, tries=Counter())
            with plain_device(stage, "pi-2"):
                stage.federation.devices.cohort.leave("deaf", "mended")
                stage.run()
            assert [r.state for r in stage.ledger.rounds.all()] == [*["abandoned"] * 5, "committed"]


def test_corrupt_data_file_is_named_and_the_round_does_without(tmp_path: Path, exports: Path) -> None:
    """The agent says in its hello which file it cannot read; nobody waits for it when the others are enough."""
    text = config_text(local=0, min_reports=2, rounds=2)
    with (
        InProcessFederation(tmp_path, exports, text) as stage,
        plain_device(stage, "pi-1"),
        plain_device(stage, "pi-2"),
    ):
        part = stage.write_data("pi-3", 0) / "part.npz"
        part.write_bytes(part.read_bytes()[:3000])
        stage.agent("pi-3")
        stage.run()
        assert [devices for _, _, devices in stage.committed()] == [["pi-1", "pi-2"]] * 2
        (line,) = stage.lines.having("pi-3 is here", "data:")
        assert str(part) in line


def test_corrupt_data_file_that_is_needed_stops_the_run_and_is_named(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=2, rounds=1, join_timeout_s=3.0)
    with InProcessFederation(tmp_path, exports, text) as stage, plain_device(stage, "pi-1"):
        part = stage.write_data("pi-2", 0) / "part.npz"
        part.write_bytes(b"PK\x03\x04")
        stage.agent("pi-2")
        with pytest.raises(DeadlineExpired, match=r"1 of 2 devices said hello within 3 s \(pi-1\)") as caught:
            stage.run()
        assert f"pi-2 cannot read its data: {part}" in str(caught.value)


def test_byte_flipped_on_the_way_is_fetched_again(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=1, rounds=1)
    with InProcessFederation(tmp_path, exports, text) as stage:
        stage.write_data("pi-1", 0)
        link = FlippingTransport(stage.broker, stage.name, "pi-1", times=1)
        stage.agent("pi-1", transport=link)
        stage.run()
        assert stage.committed() == [(0, 0, ["pi-1"])]
        assert len(set(link.flipped)) == len(link.flipped) > 2  # manifest, graphs, weights: each once


def test_byte_flipped_on_every_way_is_refused_with_the_digest(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=2, min_reports=1, rounds=1)
    with InProcessFederation(tmp_path, exports, text) as stage, plain_device(stage, "pi-2"):
        stage.write_data("pi-1", 0)
        stage.agent("pi-1", transport=FlippingTransport(stage.broker, stage.name, "pi-1", times=99))
        stage.run()
        assert stage.committed() == [(0, 0, ["pi-2"])]
        entry = next(a for a in stage.ledger.assignments.of_attempt(0, 0) if a.device == "pi-1")
        assert (entry.state, entry.code) == ("refused", "artifact-corrupt")
        assert entry.artifact_digest[:12] in entry.reason
        # It was the link: the coordinator's own blobs are as they were.
        assert entry.artifact_digest in stage.federation.blobs


def graph_file(federation: Federation) -> Path:
    """The largest file of the artifact that the open round uses, in the coordinator's store."""
    digest = federation.ledger.assignments.of_attempt(0, 0)[0].artifact_digest
    largest = max(federation.artifacts.load(digest).manifest.files, key=lambda file: file.size)
    return federation.blobs.path(largest.sha256)


def test_byte_flipped_on_our_own_disk_is_refused_and_exported_again(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=1, rounds=1)
    with InProcessFederation(tmp_path, exports, text) as stage:
        whole: dict[Path, bytes] = {}

        def rot(point: str) -> None:
            if point == "planned" and not whole:
                path = graph_file(stage.federation)
                whole[path] = path.read_bytes()
                path.write_bytes(whole[path][:-1] + bytes([whole[path][-1] ^ 1]))

        stage.on_point = rot
        stage.write_data("pi-1", 0)
        stage.agent("pi-1")
        stage.run()
        assert stage.committed() == [(0, 1, ["pi-1"])]
        assert stage.ledger.assignments.of_attempt(0, 0)[0].code == "artifact-corrupt"
        ((path, data),) = whole.items()
        assert path.read_bytes() == data
        assert stage.lines.having(path.name[:12], "it is made anew")
