"""Which orders say that a mean may stand for the updates behind it, and which never do."""

from __future__ import annotations

import pytest

from coordinator.config.run_config import RunConfig
from coordinator.privacy.one_cut import is_summable
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import DeviceProgram

PLAIN = DeviceProgram()


def config(method: str = "fedavg", rest: str = "") -> RunConfig:
    return load_config_text(
        f"""
[federation]
name = "fed"
rounds = 1
[model]
build = "mlp"
[method]
name = "{method}"
[data]
source = "digits"
[cohort]
size = 3
min-reports = 3
{rest}
"""
    )


def test_summable_methods_are_those_of_one_cut() -> None:
    assert is_summable(config(), PLAIN)
    assert is_summable(config(rest='[aggregation]\nmode = "buffered"'), PLAIN)  # a step of means is a mean of steps
    assert not is_summable(config("fedhm"), PLAIN)
    assert not is_summable(config("heterofl"), PLAIN)


@pytest.mark.parametrize(
    "rest",
    [
        '[aggregation]\nrule = "median"',
        "[defences]\nquarantine-factor = 3.0",
        "[defences]\nexamples-factor = 2.0",
        "[privacy]\nclip-norm = 1.0",
        "[privacy]\nsecure-aggregation = true",
    ],
)
def test_what_is_done_with_each_update_cannot_be_done_with_a_mean(rest: str) -> None:
    assert not is_summable(config(rest=rest), PLAIN)


@pytest.mark.parametrize(
    "program",
    [DeviceProgram(accumulators=("fc.weight",)), DeviceProgram(probe=True), DeviceProgram(reports_labels=True)],
    ids=["accumulators", "probe", "labels"],
)
def test_what_devices_send_beside_weights_has_no_mean(program: DeviceProgram) -> None:
    assert not is_summable(config(), program)
