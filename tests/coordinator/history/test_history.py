"""A run's history is what its ledger says, for a file and for a server, also while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.history.history import History
from coordinator.history.records import Counts, LayerDevice, LayerLevel, Privacy, TrafficTotal
from coordinator.ledger.ledger import Ledger
from edge.contracts.errors import ConfigError, LedgerError
from edge.contracts.plan import assignment_id
from tests.coordinator.history.small_ledger import PEAK, begin, commit, report, small_ledger
from tests.coordinator.ledger.older_tables import back_to_version_5


@pytest.fixture
def run(ledger_place: Path | str) -> Iterator[tuple[Ledger, History]]:
    with small_ledger(ledger_place) as ledger, History(ledger_place, "small") as history:
        yield ledger, history


def test_run_as_a_whole(run: tuple[Ledger, History]) -> None:
    ledger, history = run
    found = history.run()
    assert (found.name, found.method, found.model, found.state) == ("small", "fedhm", "mlp", "running")
    assert (found.rounds_asked, found.rounds_committed, found.attempts, found.devices) == (3, 2, 4, 3)
    assert found.request == ""
    assert found.ended_at is None
    ledger.requests.put("control", "pause")
    assert history.run().request == "pause"


def test_rounds_say_what_was_repeated_and_why(run: tuple[Ledger, History]) -> None:
    repeated, done, second, under_way = run[1].rounds()
    assert (repeated.state, repeated.why) == ("abandoned", "1 reports, 2 needed")
    assert repeated.assigned == {"reported": 1, "expired": 2}
    assert (done.round, done.attempt, done.state, done.counted) == (0, 1, "committed", 2)
    assert done.assigned == {"reported": 2, "refused": 1}
    assert done.reported == {"whole": 1, "rank 4": 1}
    assert (done.loss, done.bytes_up, done.bytes_down, done.wall_s) == (2.0, 12, 10, 1.5)
    assert done.scores["rank 4"]["accuracy"] == 0.25
    assert (second.quarantined, second.counted) == (1, 2)
    assert second.privacy == Privacy(epsilon=1.25, delta=1e-5)
    assert under_way.assigned == {"reported": 1, "accepted": 2}
    assert under_way.loss is None
    assert [entry.round for entry in run[1].rounds(1)] == [1, 2]
    assert [entry.attempt for entry in run[1].rounds(limit=2)] == [0, 1]


def test_times_of_rounds_and_assignments_follow_each_other(run: tuple[Ledger, History]) -> None:
    done = run[1].rounds()[1]
    assert done.planned_at
    assert done.published_at
    assert done.aggregating_at
    assert done.ended_at
    assert done.planned_at <= done.published_at <= done.aggregating_at <= done.ended_at
    entry = run[1].assignments_of_round(0, 1)[0]
    assert entry.planned_at
    assert entry.sent_at
    assert entry.accepted_at
    assert entry.answered_at
    assert entry.planned_at <= entry.sent_at <= entry.accepted_at <= entry.answered_at
    waiting = run[1].assignments_of_round(2, 0)[1]
    assert waiting.state == "accepted"
    assert waiting.answered_at is None


def test_devices_with_budget_prediction_and_measurement(run: tuple[Ledger, History]) -> None:
    first, second, third = run[1].devices()
    assert (first.device, first.level, first.state, first.round) == ("pi-1", "whole", "reported", 2)
    assert (first.budget_bytes, first.predicted_peak_bytes, first.measured_peak_bytes) == (PEAK, PEAK, PEAK + 2)
    assert (first.step_ms, first.predicted_step_ms, first.board) == (1.0, None, "Raspberry Pi 4")
    assert first.counts == Counts(assigned=4, reported=4)
    assert (second.score, second.barred_until, second.quarantine) == (0.5, 4, "norm-outlier")
    assert second.counts == Counts(assigned=4, reported=2, expired=1, waiting=1, quarantined=1)
    assert third.counts == Counts(assigned=4, reported=1, refused=1, expired=1, waiting=1)
    assert (first.bytes_up, first.bytes_down, third.bytes_up) == (10, 30, 0)
    assert run[1].device("pi-2") == second
    assert run[1].device("nobody") is None
    assert [entry.device for entry in run[1].devices("pi-1", limit=1)] == ["pi-2"]


def test_counts_go_on_from_rounds_that_are_over(run: tuple[Ledger, History]) -> None:
    ledger, history = run
    history.devices()
    report(ledger, "pi-2", 2, 0)
    ledger.assignments.expire(assignment_id("small", 2, "pi-3", 0))
    commit(ledger, 2, 0, ("pi-1", "pi-2"))
    begin(ledger, 3, 0)
    with History(ledger.path, "small") as anew:
        assert history.devices() == anew.devices()
    assert history.devices()[1].counts == Counts(assigned=5, reported=3, expired=1, waiting=1, quarantined=1)


def test_assignments_say_what_became_of_them(run: tuple[Ledger, History]) -> None:
    first, second, third = run[1].assignments_of_round(0, 1)
    assert (first.counted_in, first.weight, first.loss, first.num_examples) == (0, 10.0, 1.5, 10)
    assert (first.predicted_peak_bytes, first.measured_peak_bytes) == (PEAK, PEAK + 2)
    assert second.loss == 2.5
    assert (third.state, third.code, third.reason) == ("refused", "out-of-memory", "peak 130 MB")
    kept_out = run[1].assignments_of_round(1, 0)[1]
    assert (kept_out.quarantine, kept_out.evidence["rms"], kept_out.counted_in) == ("norm-outlier", 9.0, None)
    mine = run[1].assignments_of_device("pi-1")
    assert [(entry.round, entry.attempt) for entry in mine] == [(2, 0), (1, 0), (0, 1), (0, 0)]
    assert mine[-1].counted_in is None
    assert mine[-1].round_state == "abandoned"
    assert [entry.round for entry in run[1].assignments_of_device("pi-1", before_round=1)] == [0, 0]
    assert [entry.device for entry in run[1].assignments_of_round(0, 1, after="pi-1", limit=1)] == ["pi-2"]


def test_model_map_says_who_trained_which_layer_and_when(run: tuple[Ledger, History]) -> None:
    found = run[1].model()
    fc1, fc2 = found.layers
    assert (fc1.path, fc1.updates, fc1.devices, fc1.last_round) == ("fc1", 4, 3, 1)
    assert fc1.levels["rank 4"] == LayerLevel(holds="rank 4", updates=2, devices=2, last_round=1)
    assert set(fc1.tensors) == {"fc1.weight", "fc1.bias", "fc1.u", "fc1.v"}
    assert (fc2.updates, fc2.devices) == (2, 1)
    assert fc2.levels["rank 4"] == LayerLevel(holds="frozen", updates=0, devices=0, last_round=-1)
    assert [(e.round, e.level, e.updates) for e in found.rounds] == [
        (0, "rank 4", 1),
        (0, "whole", 1),
        (1, "rank 4", 1),
        (1, "whole", 1),
    ]
    assert found.is_complete
    assert found.through_round == 1
    assert run[1].layer_devices("fc1") == (
        LayerDevice(device="pi-1", updates=2, last_round=1),
        LayerDevice(device="pi-2", updates=1, last_round=0),
        LayerDevice(device="pi-3", updates=1, last_round=1),
    )
    assert run[1].layer_devices("none") == ()


def test_model_map_goes_on_where_it_was(run: tuple[Ledger, History]) -> None:
    ledger, history = run
    history.model()
    report(ledger, "pi-2", 2, 0)
    commit(ledger, 2, 0, ("pi-2",))
    assert history.model().layers[0].updates == 5
    with History(ledger.path, "small") as anew:
        assert history.model() == anew.model()


def test_events_and_traffic(run: tuple[Ledger, History]) -> None:
    _ledger, history = run
    found = history.events()
    assert [entry.number for entry in found] == list(range(1, history.run().last_event + 1))
    assert [entry.action for entry in history.events(device="pi-2")] == [
        "device-joined",
        "update-quarantined",
        "device-barred",
    ]
    assert history.events(found[-2].number) == found[-1:]
    assert history.latest_events(2) == found[-2:]
    assert history.traffic() == (
        TrafficTotal(direction="down", scheme="https", payload_bytes=30, wire_bytes=31),
        TrafficTotal(direction="up", scheme="mqtt", payload_bytes=11, wire_bytes=16),
    )
    assert history.traffic("pi-2") == (TrafficTotal(direction="up", scheme="mqtt", payload_bytes=1, wire_bytes=2),)


def test_nothing_can_be_written_through_it(run: tuple[Ledger, History]) -> None:
    with pytest.raises(LedgerError, match=r"read-?only"):
        run[1]._ledger.all("UPDATE federation SET state = 'finished'")
    assert run[0].federation().state == "running"


def test_run_directory_is_found_and_another_refused(tmp_path: Path) -> None:
    with small_ledger(tmp_path / "ledger.sqlite"), History.of(tmp_path) as history:
        assert history.run().name == "small"
    with pytest.raises(ConfigError, match="holds no run"):
        History.of(tmp_path / "none")


def test_ledger_of_an_older_release_is_brought_up_to_date(tmp_path: Path) -> None:
    place = tmp_path / "ledger.sqlite"
    small_ledger(place).close()
    back_to_version_5(place)
    with History(place) as history:
        assert history.rounds()[1].ended_at is None
        assert history.assignments_of_round(0, 1)[0].answered_at is None
        assert history.rounds()[1].counted == 2
