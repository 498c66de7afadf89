"""Malformed messages against the coordinator's inbox: none used, none raises, memory flat."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.fuzz.inbox_under_fire import WARM_UP, fire
from tests.fuzz.malformed import Malformed, is_sound

COUNT = 20_000
"""In the suite; ``make fuzz`` sends a million."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    return fire(COUNT, seed=11, folder=tmp_path_factory.mktemp("fire"))


def test_no_malformed_message_is_used(outcome) -> None:  # type: ignore[no-untyped-def]
    assert outcome.messages == COUNT > WARM_UP
    assert outcome.changed == []
    assert outcome.positive_answers == 0


def test_messages_are_spoilt_in_every_way(outcome) -> None:  # type: ignore[no-untyped-def]
    assert set(outcome.ways) == set(Malformed("f", "d", {"bye": {}}, {}, seed=0).ways)
    assert min(outcome.ways.values()) > 30


def test_memory_and_files_stay_flat(outcome) -> None:  # type: ignore[no-untyped-def]
    assert outcome.rss_growth < 8 * 2**20
    assert outcome.open_files_growth <= 1


def test_same_seed_spoils_alike() -> None:
    bodies = {"bye": {"reason": "gone"}, "accept": {"assignment_id": "1"}}
    strangers = {"bye": [{"reason": "x"}]}
    first, second = (Malformed("f", "d", bodies, strangers, seed=3) for _ in range(2))
    assert list(itertools.islice(first, 200)) == list(itertools.islice(second, 200))


def test_a_used_message_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself: a stream with one sound message among the malformed ones is told from one without."""

    def leak(self: Malformed, draw, kind, body):  # type: ignore[no-untyped-def]
        return self._topic("accept"), self._sound("accept", self._bodies["accept"])

    monkeypatch.setattr(Malformed, "_noise", leak)
    assert fire(300, seed=5, folder=tmp_path).changed == ["assignments"]


def test_soundness_is_the_schema_s() -> None:
    source = Malformed("f", "d", {"accept": {"assignment_id": "1" * 64}}, {}, seed=0)
    assert is_sound(source._sound("accept", {"assignment_id": "x"}), "accept")
    assert not is_sound(source._sound("accept", {"assignment_id": 5}), "accept")
    assert not is_sound(source._sound("accept", {}), "accept")
