"""Four devices, one of them hostile: set aside with the evidence, barred, let back in; absurd claims are refused.

All four only pretend to train, so that rounds take no time; the coordinator is the real one.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import typer

from coordinator.cli.quarantine import ls, release
from coordinator.defences.reliability import may_take_part
from coordinator.ledger.ledger import Ledger
from edge.contracts.messages import Ack
from edge.contracts.plan import WorkOrder
from edge.contracts.tensor_file import read_tensor_file
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = pytest.mark.runtime

HONEST = ["device-00", "device-01", "device-02"]
MALLORY = "mallory"
FACTOR = 5
ROUNDS = 7
CLAIMS = 4
"""The round in which Mallory claims more examples than its hello said."""

DEFENCES = f"[defences]\nquarantine-factor = {FACTOR}\nbar-after = 2\nbar-rounds = 2\n"


@dataclass
class Played:
    """What is left of the run."""

    stage: InProcessFederation
    orders: dict[int, WorkOrder] = field(default_factory=dict)
    acks: dict[int, Ack] = field(default_factory=dict)


def honest(stage: InProcessFederation, name: str) -> HostileDevice:
    """A device that does what it is told."""

    def behave(order: WorkOrder) -> None:
        device.finish(order)

    device = HostileDevice(stage.broker, stage.name, name, behave)
    return device


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, exports: Path) -> Iterator[Played]:
    text = config_text(rounds=ROUNDS, local=0, size=4, min_reports=3, evaluation="every = 1") + DEFENCES
    with (
        InProcessFederation(tmp_path_factory.mktemp("cohort"), exports, text) as stage,
        contextlib.ExitStack() as stack,
    ):
        result = Played(stage)

        def behave(order: WorkOrder) -> None:
            result.orders[order.round] = order
            if order.round == CLAIMS:
                mallory.report(order, mallory.upload(order, mallory.update(order)), num_examples=2**40)
                result.acks[order.round] = mallory.wait_ack(order)
            else:
                weights = mallory.weights(order)
                far = {name: weights[name] * np.float32(-30) for name in order.upload}
                mallory.report(order, mallory.upload(order, far))
                result.acks[order.round] = mallory.wait_ack(order)

        for name in HONEST:
            stack.enter_context(honest(stage, name))
        mallory = stack.enter_context(HostileDevice(stage.broker, stage.name, MALLORY, behave))
        stage.run()
        yield result


@pytest.mark.slow
def test_update_that_moved_too_far_is_set_aside_and_the_round_goes_on(played: Played) -> None:
    participants = {index: devices for index, _, devices in _counted(played)}
    assert [participants[index] for index in range(ROUNDS)] == [
        HONEST,  # set aside
        HONEST,  # set aside again: barred
        HONEST,
        HONEST,
        HONEST,  # back, and refused for its claim
        HONEST,  # set aside: two in a row since it came back
        HONEST,
    ]
    assert sorted(played.orders) == [0, 1, CLAIMS, 5]


def test_quarantine_holds_the_evidence(played: Played) -> None:
    found = played.stage.ledger.quarantine.all()
    assert [(entry.device, entry.round, entry.code) for entry in found] == [
        (MALLORY, index, "norm") for index in (0, 1, 5)
    ]
    evidence = found[0].evidence
    # Honest devices send 0.99 of the weights, Mallory -30 times them: 0.01 w against 31 w.
    assert evidence["rms"] / evidence["median"] == pytest.approx(3100, rel=1e-3)
    assert (evidence["factor"], evidence["compared_with"], evidence["num_examples"]) == (FACTOR, "level 'rank 1/4'", 9)
    assert evidence["largest_tensor"] in played.orders[0].upload
    assert 0 < evidence["largest_share"] <= 1


def test_blob_of_a_quarantined_update_stays(played: Played) -> None:
    for entry in played.stage.ledger.quarantine.all():
        blobs = played.stage.federation.blobs
        blobs.verify(entry.evidence["update_digest"])
        held = read_tensor_file(blobs.path(entry.evidence["update_digest"]), where="quarantine")
        assert sorted(held) == sorted(played.orders[entry.round].upload)


def test_people_are_told(played: Played) -> None:
    lines = played.stage.lines
    assert len(lines.having(MALLORY, "update set aside", "apportion quarantine ls")) == 3
    assert lines.having(MALLORY, "its last 2 updates were rejected or set aside", "until round 5")
    assert lines.having(MALLORY, "its last 2 updates were rejected or set aside", "until round 9")


def test_claim_of_more_examples_than_the_hello_said_is_rejected(played: Played) -> None:
    ack = played.acks[CLAIMS]
    assert (ack.accepted, ack.code) == (False, "update-rejected")
    assert f"stands for {2**40} examples, the device's hello said 9" in ack.reason


def test_standing_counts_what_came_of_each_update(played: Played) -> None:
    reliability = played.stage.ledger.reliabilities.all()[MALLORY]
    assert (reliability.accepted, reliability.rejected, reliability.quarantined, reliability.barred_until) == (
        0,
        1,
        3,
        8,
    )
    assert played.stage.ledger.reliabilities.outcomes()["device-00"] == (ROUNDS, 0, 0)


def test_release_drops_the_updates_and_clears_the_standing(
    played: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, defences = played.stage.ledger, played.stage.config.defences
    told: list[str] = []
    assert may_take_part(ledger, defences, [MALLORY, *HONEST], ROUNDS, say=told.append) == HONEST
    shutil.copy(played.stage.folder / "ledger.sqlite", tmp_path / "ledger.sqlite")
    for more in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(played.stage.folder / f"ledger.sqlite{more}", tmp_path / f"ledger.sqlite{more}")
    for verb, words in ((ls, "3 updates in quarantine, 1 devices barred"), (let_go, "3 updates dropped")):
        with pytest.raises(typer.Exit) as ended:
            verb(tmp_path)
        assert ended.value.exit_code == 0
        assert words in capsys.readouterr().out
    with Ledger.open(tmp_path / "ledger.sqlite") as copy:
        assert copy.quarantine.all() == ()
        assert may_take_part(copy, defences, [MALLORY, *HONEST], ROUNDS, say=told.append) == [MALLORY, *HONEST]


def let_go(run_dir: Path) -> None:
    release(run_dir, MALLORY)


def _counted(played: Played) -> list[tuple[int, int, list[str]]]:
    return [
        (r.round, r.attempt, list(r.participants)) for r in played.stage.ledger.rounds.all() if r.state == "committed"
    ]
