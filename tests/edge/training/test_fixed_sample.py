"""A fixed sample: the same rows in every order, all examples where there are no more, and no step on others."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DeviceRefused
from edge.contracts.evaluation import HeldOut
from edge.contracts.fixed_sample import FixedSample
from edge.contracts.plan import Schedule
from edge.contracts.streams import permutation
from edge.training.assignment_run import AssignmentRun, carry_out
from edge.training.fixed_sample import sample_rows, sampled
from edge.training.held_out import split
from tests.edge.tiny_artifact import FEATURES, tiny_job
from tests.edge.training.test_held_out import examples
from tests.edge.training.test_steps import WritingSession, manifest

RULE = FixedSample(size=6, seed=2**64 - 3)


def run(session: WritingSession, *, data_seed: int = 1, count: int = 20, **values: object) -> AssignmentRun:
    order = msgspec.structs.replace(
        tiny_job().order, schedule=Schedule(epochs=3), batch=4, last_batch="drop", data_seed=data_seed, **values
    )
    return carry_out(session, manifest(), order, examples(count))


def seen(session: WritingSession) -> set[int]:
    return {int(x) // FEATURES for _, feeds in session.runs for x in feeds["input"][:, 0]}


def test_rows_are_those_of_the_wire_protocol() -> None:
    """The first six places of the shuffle, rising."""
    rows = sample_rows(20, RULE)
    assert rows.tolist() == sorted(permutation(2**64 - 3, 20)[:6].tolist())
    assert len(set(rows.tolist())) == 6
    assert rows.tolist() != sample_rows(20, msgspec.structs.replace(RULE, seed=4)).tolist()


def test_no_more_examples_than_asked_for_are_all_taken() -> None:
    few = examples(6)
    assert sampled(few, RULE) is few
    assert len(sampled(examples(3), RULE)) == 3
    assert len(sampled(examples(7), RULE)) == 6


def test_steps_of_every_order_see_the_sample_alone() -> None:
    rows = set(sample_rows(20, RULE).tolist())
    found = []
    for data_seed in (1, 2, 3):
        session = WritingSession()
        done = run(session, data_seed=data_seed, sample=RULE)
        assert done.num_examples == 6
        assert done.outcome.steps == 3  # of four, and two that are left over
        found.append(seen(session))
        assert found[-1] <= rows
    assert set.union(*found) == rows
    session = WritingSession()
    assert run(session).num_examples == 20
    assert not seen(session) <= rows


def test_sample_is_of_what_is_not_held_out() -> None:
    rule = HeldOut(share=0.25, seed=7, least=1)
    kept = split(examples(40), rule).trained
    rows = {int(x) // FEATURES for x in kept.batch(sample_rows(len(kept), RULE), None)[0][:, 0]}
    session = WritingSession()
    assert run(session, count=40, held_out=rule, sample=RULE).num_examples == 6
    assert seen(session) <= rows
    assert np.all([row < 40 for row in rows])


def test_sample_of_no_example_is_refused() -> None:
    with pytest.raises(DeviceRefused, match="a sample of 0 examples; order at least 1"):
        run(WritingSession(), sample=FixedSample(size=0, seed=1))
