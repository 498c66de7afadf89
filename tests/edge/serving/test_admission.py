"""Places for uploads: given in order, freed by whoever is done or silent."""

from __future__ import annotations

from edge.serving.admission import SILENT_S, Admission


def test_places_go_to_the_first_offers_and_the_next_in_line_follows() -> None:
    admission = Admission(2, now=lambda: 0.0)
    assert [admission.ask(name) for name in "abcd"] == [True, True, False, False]
    assert admission.ask("a")  # its place is its own, however often it offers
    assert not admission.ask("d")
    assert admission.leave("a") == ["c"]
    assert admission.waiting == 1
    assert admission.leave("b") == ["d"]


def test_one_that_waits_may_leave_without_a_place_being_freed() -> None:
    admission = Admission(1, now=lambda: 0.0)
    admission.ask("a")
    admission.ask("b")
    assert admission.leave("b") == []
    assert admission.leave("nobody") == []
    assert admission.leave("a") == []
    assert admission.waiting == 0


def test_a_silent_upload_loses_its_place_and_one_that_is_heard_keeps_it() -> None:
    clock = [0.0]
    admission = Admission(2, now=lambda: clock[0])
    admission.ask("silent")
    admission.ask("alive")
    clock[0] = SILENT_S + 1
    admission.heard("alive")
    assert admission.ask("next")
    assert not admission.ask("silent")
    assert admission.leave("next") == ["silent"]
