"""Four phones and four Python agents train together and end where eight Python agents do.

Needs Chromium, the built page and Mosquitto; MNIST by writer where APPORTION_DATA names its folder, digits otherwise.
Each phone has a processor slowed four times by the browser's protocol, which reaches the page's main thread alone, and
one of them a link of 4 Mbit/s and 60 ms besides. Everything about a phone but its runtime (id, examples, order of the
batches) is that of the agent it stands for, so that the two runs differ by float arithmetic alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.web.mixed_run import MixedRun, final_model, recorded_updates, relative_l2
from tests.web.phone import Phone, wait_until

POINTS = 0.005
"""Accuracy the two runs may differ by; measured: none."""

MODEL_REL_L2 = 1e-3
"""Between the final models; measured: 1.7e-7, and float32 differences grow where a ReLU falls on the other side."""

MNIST_BY_WRITER = """
[federation]
name = "mixed"
seed = 1
rounds = 4

[model]
build = "tests.web.small_convnet:build"
input = [1, 28, 28]
classes = 10

[method]
name = "fedavg"

[training]
epochs = 1
batch = 32
last-batch = "keep"
lr = 0.03
momentum = 0.9

[evaluation]
every = 0
batch = 1000

[data]
source = "mnist-writers"
scale = 0.00392156862745098
mean = [0.1307]
std = [0.3081]
partition = "writer-groups"
devices = 67
"""

DIGITS = """
[federation]
name = "mixed"
seed = 1
rounds = 3

[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [96, 96] }

[method]
name = "fedavg"

[training]
epochs = 1
batch = 16
last-batch = "keep"
lr = 0.05
momentum = 0.9

[evaluation]
every = 0

[data]
source = "digits"
scale = 0.0625
"""


def phone(browser: Browser, number: int) -> Phone:
    """A phone with a slow processor; the last one of four has a slow link, too."""
    if number == 3:
        return Phone(browser, slower=4, megabit_per_s=4, latency_ms=60)
    return Phone(browser, slower=4)


def compare(
    run: MixedRun, rounds: int, folder: Path, browser: Browser, note: Callable[[str, object], None]
) -> dict[str, float]:
    """Both runs of ``run``: accuracies, and how far apart the final models are."""
    alone = run.agents_alone(folder / "alone")
    with run.with_phones(folder / "mixed", browser, phone) as (site, phones):
        wait_until(site.is_over, 180, "the end of the run with phones", phones[0].page)
        mixed = site.summary(timeout_s=5)
        # The broker ends with the run; that its connection is gone is all a phone may complain of.
        lines = [line for each in phones for line in each.complaints]
        complaints = [line for line in lines if not line.startswith("WebSocket connection to")]
    updates = recorded_updates(site.run_dir)
    who = {(u.assignment.device, u.report.runtime) for u in updates}
    assert {device for device, runtime in who if runtime == "onnxruntime_web"} == set(run.phone_ids())
    # Every device in every round, once: nobody was left out or counted twice.
    assert len(updates) == rounds * run.devices
    assert complaints == [], complaints
    ours, theirs = final_model(site.run_dir), final_model(folder / "alone" / "run")
    assert ours.keys() == theirs.keys()
    figures = {
        "alone": alone["accuracy"],
        "mixed": mixed["accuracy"],
        "model_rel_l2": max(relative_l2(ours[name], theirs[name]) for name in ours),
    }
    for name, value in figures.items():
        note(name, value)
    print(figures)
    return figures


@pytest.mark.broker
@pytest.mark.data
def test_phones_and_agents_end_where_agents_alone_do_on_mnist(
    chromium: Browser, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    figures = compare(MixedRun(MNIST_BY_WRITER, local=4, phones=4), 4, tmp_path, chromium, record_property)
    assert figures["mixed"] > 0.9
    assert abs(figures["mixed"] - figures["alone"]) <= POINTS
    assert figures["model_rel_l2"] <= MODEL_REL_L2


@pytest.mark.broker
def test_phones_and_agents_end_where_agents_alone_do_on_digits(
    chromium: Browser, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if os.environ.get("APPORTION_DATA"):
        pytest.skip("MNIST is here; it says the same and more")
    figures = compare(MixedRun(DIGITS, local=2, phones=2), 3, tmp_path, chromium, record_property)
    assert figures["mixed"] > 0.8
    assert abs(figures["mixed"] - figures["alone"]) <= POINTS
    assert figures["model_rel_l2"] <= MODEL_REL_L2
