"""Sums of devices as a distribution; numbers by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from coordinator.device_scores.distribution import DeviceScore, distribution, in_words, scores_summary
from edge.contracts.errors import UpdateRejected
from edge.contracts.evaluation import Evaluation
from edge.contracts.report import TrainReport
from edge.serving.update_check import check_report
from tests.builders import train_report


def score(device: str, level: str, examples: int, correct: float, loss: float, **more: Any) -> DeviceScore:
    sums = {"correct": correct, "loss": loss}
    return DeviceScore(device, level, Evaluation(examples=examples, targets=examples, sums=sums, **more))


SCORES = [
    score("a", "full", 10, 9.0, 5.0),
    score("b", "full", 30, 15.0, 30.0),
    score("c", "half", 10, 1.0, 40.0),
    DeviceScore("d", "half", Evaluation(examples=3)),
]


def test_mean_is_of_all_examples_and_the_rest_of_devices() -> None:
    found = distribution(SCORES)
    assert (found["devices"], found["examples"], found["too_few"]) == (3, 50, ["d"])
    accuracy = found["metrics"]["accuracy"]
    assert accuracy["mean"] == 25 / 50
    assert accuracy["lowest"] == {"device": "c", "value": 0.1}
    assert accuracy["highest"] == {"device": "a", "value": 0.9}
    assert accuracy["quantiles"]["0.5"] == 0.5
    assert accuracy["quantiles"]["0.25"] == pytest.approx(0.3)  # halfway between 0.1 and 0.5
    assert accuracy["histogram"]["devices"] == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    loss = found["metrics"]["loss"]
    assert loss["mean"] == 75 / 50
    assert (loss["lowest"]["value"], loss["highest"]["value"]) == (0.5, 4.0)
    assert sum(loss["histogram"]["devices"]) == 3
    assert loss["histogram"]["edges"][0] == 0.5
    assert found["levels"]["full"] == {"devices": 2, "examples": 40, "accuracy": 24 / 40, "loss": 35 / 40}
    assert found["levels"]["half"]["accuracy"] == 0.1
    assert in_words(found) == "accuracy on 3 devices 0.5000 (0.1000 to 0.9000)"


def test_questions_are_those_of_the_devices_that_have_any() -> None:
    def measured(sums: Mapping[str, float], examples: int, targets: int) -> dict[str, float]:
        asked = sums.get("sum:questions", 0.0)
        return {"loss": sums["loss"], **({"choice_accuracy": sums["sum:choice_hits"] / asked} if asked else {})}

    def asked(questions: float, hits: float) -> dict[str, float]:
        return {"loss": 1.0, "sum:questions": questions, "sum:choice_hits": hits, "sum:choice_mean_hits": 0.0}

    sums = {"a": asked(6, 3), "b": {"loss": 2.0}, "c": asked(10, 9)}
    found = distribution([DeviceScore(n, "full", Evaluation(examples=5, sums=s)) for n, s in sums.items()], measured)
    assert (found["devices"], "other_sums" in found) == (3, False)
    assert found["metrics"]["loss"]["mean"] == 4.0
    accuracy = found["metrics"]["choice_accuracy"]
    assert accuracy["mean"] == 12 / 16
    assert accuracy["lowest"] == {"device": "a", "value": 0.5}
    assert sum(accuracy["histogram"]["devices"]) == 2


def test_any_metric_is_summed_and_measured_over_all_devices_together() -> None:
    def rooted(sums: Mapping[str, float], examples: int, targets: int) -> dict[str, float]:
        return {"rmse": (sums["squares"] / sums["values"]) ** 0.5, "loss": sums["loss"] / examples}

    scores = [
        DeviceScore("a", "full", Evaluation(examples=2, targets=2, sums={"loss": 4.0, "squares": 8.0, "values": 2.0})),
        DeviceScore("b", "full", Evaluation(examples=6, targets=6, sums={"loss": 2.0, "squares": 0.0, "values": 6.0})),
        score("c", "full", 10, 9.0, 5.0),
    ]
    found = distribution(scores, rooted)
    assert found["metrics"]["rmse"]["mean"] == 1.0  # sqrt(8 / 8): not the mean of 2 and 0
    assert found["metrics"]["rmse"]["highest"] == {"device": "a", "value": 2.0}
    assert found["levels"]["full"] == {"devices": 2, "examples": 8, "loss": 6 / 8, "rmse": 1.0}
    assert (found["other_sums"], found["devices"]) == (["c"], 2)
    assert in_words(found) == "loss on 2 devices 0.7500 (0.3333 to 2.0000)"


def test_fine_tuning_counts_what_each_device_keeps() -> None:
    scores = [
        score("a", "full", 10, 5.0, 20.0, tuned={"correct": 8.0, "loss": 10.0}, kept=True),
        score("b", "full", 10, 5.0, 20.0, tuned={"correct": 2.0, "loss": 40.0}, kept=False),
    ]
    found = distribution(scores)["fine_tuning"]
    assert (found["devices"], found["kept"]) == (2, 1)
    assert found["before"] == {"accuracy": 0.5, "loss": 2.0}
    assert found["always"] == {"accuracy": 0.5, "loss": 2.5}
    assert found["after"] == {"accuracy": 13 / 20, "loss": 1.5}
    assert found["gains"]["accuracy"]["mean"] == pytest.approx(0.3)
    assert found["gains"]["loss"] == {"mean": -1.0, "lowest": -1.0, "highest": -1.0}
    nobody = distribution([scores[1]])["fine_tuning"]
    assert (nobody["kept"], nobody["gains"], nobody["after"]) == (0, {}, nobody["before"])


def test_nobody_scored_is_said() -> None:
    found = distribution([SCORES[3]])
    assert (found["devices"], found["metrics"], found["levels"]) == (0, {}, {})
    assert in_words(found) == "on no device: 1 with too few held-out examples"


def test_summary_has_the_last_one() -> None:
    assert scores_summary([{"device_evaluation": 1}, {"device_evaluation": 2}, {}]) == {"device_evaluation": 2}
    assert scores_summary([{}]) == {}


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (Evaluation(examples=60, targets=60, sums={"loss": 1.0}), "50 examples and 60 held out, the device's hello"),
        (Evaluation(examples=0, sums={"loss": 1.0}), "scores of 0 held-out examples"),
        (Evaluation(examples=9, targets=9, sums={"correct": 1.0}), r"sums of \['correct'\]; a loss"),
        (Evaluation(examples=9, targets=9, sums={"loss": 1.0, "correct": 10.0}), "10 of 9 held-out targets are"),
        (Evaluation(examples=9, targets=9, tuned={"loss": 1.0, "correct": -1.0}), "-1 of 9 held-out targets are"),
    ],
)
def test_scores_that_cannot_be_are_rejected(evaluation: Evaluation, message: str) -> None:
    report: TrainReport = train_report("a" * 64, "pi", 2, num_examples=50, evaluation=evaluation)
    with pytest.raises(UpdateRejected, match=message):
        check_report(report, device="pi", round_index=2, where="device pi, round 2", examples=100)
