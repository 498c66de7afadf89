"""Runs with clipping and noise: what the model is made of, what it has spent, when a run stops, and that it resumes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.privacy.accountant import PrivacyBudgetSpent, Release, epsilon
from coordinator.privacy.gaussian_noise import normal
from coordinator.privacy.releases import Mechanism, released, releases
from coordinator.rounds.stages.differential_privacy import DifferentialPrivacy
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from tests.coordinator.ledger.test_rounds import report
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import DEVICES, config_text, crash, with_convolutions

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def text_of(privacy: str, *, rounds: int = 1) -> str:
    text = config_text(rounds=rounds).replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')
    return f"{text.replace('frobenius-lambda = 0.0001', '')}\n[privacy]\n{privacy}\n"


def test_model_is_the_weights_plus_clipped_differences_plus_noise_over_the_cohort(
    exports: Path, tmp_path: Path
) -> None:
    """Built again by hand from what the devices sent."""
    rows: list[Mechanism] = []
    with InProcessFederation(tmp_path, exports, text_of("clip-norm = 0.25\nnoise-multiplier = 0.5")) as running:
        for index in range(DEVICES):
            running.write_data(f"d{index}", index)
            running.agent(f"d{index}")

        def on_point(point: str) -> None:
            if point == "aggregating":
                rows.extend(msgspec.json.decode(row, type=Mechanism) for row in running.ledger.privacy.all().values())

        running.on_point = on_point
        state = running.run()
        (mechanism,) = rows
        blobs, updates = running.federation.blobs, running.ledger.updates.of_attempt(0, 0)
        sent = read_tensor_file(blobs.path(read_order(updates[0].assignment.order).weights.digest), where="sent")
        total = {name: np.zeros(value.shape) for name, value in sent.items()}
        clipped = 0
        for update in updates:
            trained = read_tensor_file(blobs.path(update.update_digest), where="update")
            moved = {name: trained[name].astype(np.float64) - sent[name] for name in trained}
            norm = np.sqrt(sum(float((value**2).sum()) for value in moved.values()))
            clipped += norm > 0.25
            for name, value in moved.items():
                total[name] += value * min(1.0, 0.25 / norm)
        assert clipped == DEVICES
        for name, value in total.items():
            noise = normal(mechanism.seed, name, value.shape, 0.25 * 0.5)
            expected = sent[name] + (value + noise) / DEVICES
            np.testing.assert_allclose(state.tensors[name], expected, rtol=1e-6, atol=1e-7, err_msg=name)
        metrics = running.ledger.rounds.all()[0].metrics["privacy"]
        assert metrics["epsilon"] == pytest.approx(epsilon([Release(0.5, DEVICES, DEVICES)], 1e-5))
        assert metrics["protects"]
        assert running.lines.having("epsilon")
        (left,) = running.ledger.privacy.all().values()
        assert msgspec.json.decode(left, type=Mechanism).seed == b"", "the seed outlives its round"


def test_clipping_alone_bounds_every_update_and_keeps_the_methods_weights(exports: Path, tmp_path: Path) -> None:
    with InProcessFederation(tmp_path, exports, text_of("clip-norm = 0.25")) as running:
        for index in range(DEVICES):
            running.write_data(f"d{index}", index)
            running.agent(f"d{index}")
        state = running.run()
        blobs, updates = running.federation.blobs, running.ledger.updates.of_attempt(0, 0)
        sent = read_tensor_file(blobs.path(read_order(updates[0].assignment.order).weights.digest), where="sent")
        moved = {name: value.astype(np.float64) - sent[name] for name, value in state.tensors.items()}
        assert 0.05 < np.sqrt(sum(float((value**2).sum()) for value in moved.values())) <= 0.25 * (1 + 1e-6)
        assert running.ledger.privacy.all() == {}


@pytest.mark.broker
def test_coordinator_killed_between_noise_and_commit_releases_the_same_sum(tmp_path: Path) -> None:
    """The model of the killed attempt is on disk, unnamed; the resumed run commits that very blob."""
    run_dir = tmp_path / "run"
    crash(run_dir, "before-commit", 1, text=text_of("clip-norm = 0.25\nnoise-multiplier = 1.0"))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        known = set(ledger.blobs.sizes())
        (row,) = ledger.privacy.all().values()
        assert len(msgspec.json.decode(row, type=Mechanism).seed) == 32
    resume_run(run_dir, RunOptions(quiet=True))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert ledger.rounds.all()[0].model_digest in known


@pytest.mark.broker
def test_run_stops_before_it_overspends_and_goes_on_with_more(tmp_path: Path) -> None:
    privacy = "clip-norm = 0.25\nnoise-multiplier = 4.0\nreproducible = true\nmax-epsilon = "
    two = epsilon([Release(4.0, DEVICES, DEVICES)] * 2, 1e-5)
    run_dir = tmp_path / "run"
    with pytest.raises(PrivacyBudgetSpent, match=rf"2 rounds spent epsilon {two:.4g}.*max-epsilon") as stopped:
        start_run(load_config_text(text_of(f"{privacy}{two + 0.01}", rounds=3)), run_dir, RunOptions(quiet=True))
    assert stopped.value.exit_code == 1
    summary = resume_run(run_dir, RunOptions(quiet=True, max_epsilon=100.0))
    assert summary["committed_rounds"] == 3
    told = summary["privacy"]
    assert told["epsilon"] == pytest.approx(epsilon([Release(4.0, DEVICES, DEVICES)] * 3, 1e-5))
    assert not told["protects"]
    assert "protects nothing" in told["warning"]
    text = text_of(f"{privacy}0", rounds=3)
    start_run(load_config_text(text), tmp_path / "other", RunOptions(quiet=True))
    first, second = ((d / "checkpoints" / "final.safetensors").read_bytes() for d in (run_dir, tmp_path / "other"))
    assert first == second


def test_model_with_running_statistics_is_refused(exports: Path, tmp_path: Path) -> None:
    text = with_convolutions(config_text(rounds=1)) + "\n[privacy]\nclip-norm = 1.0\nnoise-multiplier = 1.0\n"
    with InProcessFederation(tmp_path, exports, text) as running:
        for index in range(DEVICES):
            running.write_data(f"d{index}", index)
            running.agent(f"d{index}")
        with pytest.raises(PlanError, match=r"running_mean.*noise for trained weights does not cover"):
            running.run()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ('name = "fedhm"\nlevels = [4]', r"\$.privacy.noise-multiplier: method 'fedhm'.*products of factors"),
        ('name = "fedavg"\n[aggregation]\nrule = "median"', "measured for a mean, and .* is 'median'"),
        ('name = "fedavg"\n[defences]\nquarantine-factor = 3.0', "clip-norm bounds every update already"),
        ('name = "fedavg"\n[aggregation]\nmode = "buffered"', "bounds differences to one round's weights"),
    ],
)
def test_what_noise_does_not_cover_is_refused_with_the_reason(changed: str, said: str) -> None:
    text = text_of("clip-norm = 1.0\nnoise-multiplier = 1.0").replace('name = "fedavg"', changed)
    with pytest.raises(ConfigError, match=said):
        load_config_text(text)


def test_devices_that_only_say_hello_and_attempts_that_failed_make_the_bound_no_smaller(tmp_path: Path) -> None:
    """Ten of a hundred that are here, of whom thirty have ever reported; the second attempt counts with the first."""
    text = text_of("clip-norm = 1.0\nnoise-multiplier = 1.0", rounds=3)
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config=text, seed=1) as ledger:
        ledger.blobs.add("w" * 64, 1)
        rows = {}
        for round_index, attempts in enumerate((1, 2, 1)):
            for attempt in range(attempts):
                devices = [f"d{10 * round_index + k}" for k in range(10)]
                work = {"level": "full", "cut": {}, "artifact_digest": "w" * 64, "weights_digest": "w" * 64}
                entries = [
                    Assignment(
                        assignment_id=f"{round_index}-{attempt}-{d}", round=round_index, attempt=attempt, device=d,
                        order=b"", **work,
                    )
                    for d in devices
                ]  # fmt: skip
                ledger.rounds.plan(round_index, attempt, deadline_s=1.0, assignments=entries)
                stage = DifferentialPrivacy()
                federation = SimpleNamespace(ledger=ledger, config=load_config_text(text))
                current = ledger.rounds.open()
                assert current is not None
                here = [f"d{k}" for k in range(100)]
                stage.planned(federation, current, chosen=10, drawn_from=here)  # type: ignore[arg-type]
                row = ledger.privacy.all()[round_index, attempt]
                rows[round_index, attempt] = msgspec.json.decode(row, type=Mechanism)
                for state in ("published", "collecting"):
                    ledger.rounds.move(round_index, attempt, state)  # type: ignore[arg-type]
                if attempt < attempts - 1:
                    for entry in entries:
                        ledger.assignments.expire(entry.assignment_id)
                    ledger.rounds.move(round_index, attempt, "abandoned")
                    continue
                for entry in entries:
                    told = report(entry)
                    ledger.updates.record(entry.assignment_id, update_digest=entry.assignment_id, size=1, report=told)
                ledger.rounds.move(round_index, attempt, "aggregating", participants=devices)
                ledger.rounds.move(round_index, attempt, "committed", model_digest="w" * 64)
        assert [(m.cohort, m.population) for m in rows.values()] == [(10, 10), (10, 10), (10, 10), (10, 20)]
        told = releases(ledger)
        assert told == [Release(1.0, 10, 10), Release(1.0, 10, 10), Release(1.0, 10, 20)]
        assert epsilon(told, 1e-5) > 1.5 * epsilon([Release(1.0, 10, 100)] * 3, 1e-5)
    assert released(1.0, [(10, 100), (10, 40), (10, 80)]) == Release(1.0, 30, 40)
    assert released(1.0, [(10, 15), (10, 15)]) == Release(1.0, 15, 15)
