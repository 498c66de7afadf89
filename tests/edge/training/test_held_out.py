"""Which examples are held out: a stable draw, seen by no step, and scored without augmentation."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DeviceRefused
from edge.contracts.evaluation import Evaluation, HeldOut
from edge.contracts.plan import Schedule, WorkOrder
from edge.contracts.streams import uniform
from edge.training.assignment_run import carry_out
from edge.training.batches import Examples
from edge.training.evaluation import evaluate, has_improved
from edge.training.held_out import held_out_rows, split
from edge.training.local_data import LocalData
from tests.edge.tiny_artifact import FEATURES, tiny_job
from tests.edge.training.test_steps import WritingSession, manifest


def rule(**changes: object) -> HeldOut:
    return msgspec.structs.replace(HeldOut(share=0.25, seed=7, least=1, program="eval"), **changes)


def examples(count: int) -> Examples:
    x = np.arange(float(count * FEATURES)).reshape(count, FEATURES)
    return Examples(LocalData("here", x, np.arange(count) % 3), manifest())


@pytest.mark.parametrize("share", [0.5, 0.3, 0.25, 0.2, 0.07])
def test_rows_are_one_of_each_stratum_and_stay_when_data_is_added(share: float) -> None:
    many = held_out_rows(1000, rule(share=share))
    assert abs(len(many) - 1000 * share) <= 1
    for j, row in enumerate(many):
        assert math.ceil(j / share) <= row < math.ceil((j + 1) / share)
    for fewer in range(0, 1000, 37):
        assert held_out_rows(fewer, rule(share=share)).tolist() == many[many < fewer].tolist()


def test_rows_are_those_of_the_wire_protocol() -> None:
    """Strata of four: start + floor(4 u)."""
    u = uniform(7, 4)
    expected = [4 * j + math.floor(4 * u[j]) for j in range(4)]
    assert held_out_rows(12, rule()).tolist() == [row for row in expected if row < 12]
    assert held_out_rows(1000, rule()).tolist() != held_out_rows(1000, rule(seed=8)).tolist()


def test_parts_are_apart_and_whole() -> None:
    parts = split(examples(20), rule())
    seen = [part.batch(np.arange(len(part)), None)[0][:, 0].tolist() for part in (parts.trained, parts.held_out)]
    assert len(parts.held_out) == 5
    assert sorted(seen[0] + seen[1]) == [float(i * FEATURES) for i in range(20)]
    assert parts.held_out.part(np.array([1, 3])).batch(np.array([0]), None)[0][0, 0] == seen[1][1]


def test_device_without_examples_beside_its_share_is_told() -> None:
    seed = next(s for s in range(100) if len(held_out_rows(1, rule(seed=s))))
    with pytest.raises(DeviceRefused, match="of 1 examples 1 are held out and none is left to train on"):
        split(examples(1), rule(seed=seed))
    with pytest.raises(DeviceRefused, match=r"holds out 0\.9 of the examples"):
        split(examples(5), rule(share=0.9))


class ScoringSession(WritingSession):
    """Scores a batch by its size, and better from the first training step on."""

    def run(self, program: str, feeds: object) -> dict[str, float]:
        found = super().run(program, feeds)  # type: ignore[arg-type]
        if program != "eval":
            return found
        count = len(self.runs[-1][1]["input"])
        trained = any(name == "train" for name, _ in self.runs)
        return {"loss": count * (1.0 if trained else 2.0), "correct": float(count)}

    def forget(self, program: str) -> None:
        self.runs.append((f"forget {program}", {}))


def carried_out(made: HeldOut, schedule: Schedule, session: ScoringSession, count: int = 40) -> Evaluation | None:
    order: WorkOrder = msgspec.structs.replace(tiny_job().order, schedule=schedule, held_out=made)
    return carry_out(session, manifest("train", "eval"), order, examples(count)).evaluation


def test_scores_are_sums_over_the_share_in_batches_of_the_order() -> None:
    session = ScoringSession()
    found = carried_out(rule(), Schedule(turns=()), session)
    assert found == Evaluation(examples=10, targets=10, sums={"correct": 10.0, "loss": 20.0})
    fed = [feeds["input"] for name, feeds in session.runs if name == "eval"]
    assert [len(x) for x in fed] == [4, 4, 2]  # the order's batch is 4
    assert np.concatenate(fed)[:, 0].tolist() == [float(r * FEATURES) for r in held_out_rows(40, rule())]
    masks = [feeds["label_mask"].tolist() for name, feeds in session.runs if name == "eval"]
    assert masks == [[1.0, 1.0, 1.0]] * 3
    assert session.runs[-1][0] == "forget eval"


def test_no_step_sees_the_share() -> None:
    session = ScoringSession()
    carried_out(rule(), Schedule(epochs=3), session)
    trained = {float(x) for name, feeds in session.runs if name == "train" for x in feeds["input"][:, 0]}
    assert len(trained) > 20
    assert not trained & {float(r * FEATURES) for r in held_out_rows(40, rule())}
    session = ScoringSession()
    assert carried_out(rule(program=""), Schedule(epochs=3), session) is None
    assert {float(x) for _, feeds in session.runs for x in feeds["input"][:, 0]} == trained


def test_share_of_too_few_tells_its_size_alone() -> None:
    session = ScoringSession()
    assert carried_out(rule(least=11), Schedule(turns=()), session) == Evaluation(examples=10)
    assert carried_out(rule(least=1), Schedule(turns=()), session, count=16) == Evaluation(examples=4)  # FEWEST
    assert not session.runs


def test_fine_tuning_is_kept_where_it_helps() -> None:
    tuned = rule(tuned=("w",))
    found = carried_out(tuned, Schedule(steps=2), ScoringSession())
    assert found == Evaluation(
        examples=10,
        targets=10,
        sums={"correct": 10.0, "loss": 20.0},
        tuned={"correct": 10.0, "loss": 10.0},
        kept=True,
    )
    before = Evaluation(examples=4, targets=4, sums={"correct": 3.0, "loss": 2.0})
    for sums, helped in (
        ({"correct": 3.0, "loss": 1.9}, True),
        ({"correct": 3.0, "loss": 2.0}, False),
        ({"correct": 2.0, "loss": 1.0}, False),
        ({}, False),
    ):
        assert has_improved(before, Evaluation(examples=4, targets=4, sums=sums)) is helped
    assert has_improved(Evaluation(examples=1, sums={"loss": 2.0}), Evaluation(examples=1, sums={"loss": 1.0}))


def test_evaluation_does_not_move_the_order_of_training() -> None:
    """Batches are drawn over what is left, whichever rounds are scored."""
    fed = []
    for program in ("", "eval"):
        session = ScoringSession()
        carried_out(rule(program=program), Schedule(epochs=2), session)
        fed.append([feeds["input"].tolist() for name, feeds in session.runs if name == "train"])
    assert fed[0] == fed[1]


def test_evaluation_without_program_is_none() -> None:
    order = tiny_job().order
    found = evaluate(ScoringSession(), manifest("eval"), order, rule(program=""), examples(9))
    assert found == Evaluation(examples=9)
