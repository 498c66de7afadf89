"""Runs whose updates are masked: the sum is the plain run's, devices may vanish, no single update is ever on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.privacy.masking_records import COORDINATOR
from coordinator.rounds.masking.agreement import TOLD
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError, DeadlineExpired
from edge.contracts.masking import WEIGHT
from edge.contracts.messages import Refuse
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from edge.supervisor.assignment import Assignment
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text, crash

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

DEVICES = 5
MASKED = "[privacy]\nsecure-aggregation = true\n"


def text_of(privacy: str = MASKED, *, rounds: int = 1, **settings: object) -> str:
    chosen: dict[str, object] = {"size": DEVICES, "local": DEVICES, "deadline_s": 60.0, **settings}
    text = config_text(rounds=rounds, **chosen).replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')  # type: ignore[arg-type]
    return f"{text.replace('frobenius-lambda = 0.0001', '')}\n{privacy}"


def folders(folder: Path) -> tuple[Path, Path]:
    """One for a plain run, one for a masked one."""
    both = folder / "plain", folder / "masked"
    for made in both:
        made.mkdir()
    return both


def start_agents(running: InProcessFederation, count: int = DEVICES) -> None:
    for index in range(count):
        running.write_data(f"d{index}", index % len(running.shares))
        running.agent(f"d{index}")


def hold_back(running: InProcessFederation, *devices: str) -> None:
    """These share keys and never train, so that they have no update when they vanish."""
    for device in devices:
        running._agents[device][0]._masker.is_ready = lambda order: False  # type: ignore[method-assign]


def vanish(running: InProcessFederation, device: str) -> None:
    """End an agent without a word about its work."""
    running._agents[device][0].stop("test ends it")


def test_masked_round_is_the_plain_one_within_its_quantum_and_no_update_is_on_disk(
    exports: Path, tmp_path: Path
) -> None:
    plain, masked = folders(tmp_path)
    expected, updates = {}, {}
    with InProcessFederation(plain, exports, text_of("")) as running:
        start_agents(running)
        expected = dict(running.run().tensors)
        for update in running.ledger.updates.of_attempt(0, 0):
            path = running.federation.blobs.path(update.update_digest)
            updates[update.assignment.device] = read_tensor_file(path, where="update")
    with InProcessFederation(masked, exports, text_of()) as running:
        start_agents(running)
        state = running.run()
        recorded = running.ledger.updates.of_attempt(0, 0)
        order = read_order(recorded[0].assignment.order)
        assert order.masking is not None
        # Each device rounds to half a step, the mean divides their sum by all examples; float32 rounds once more.
        quantum = DEVICES * order.masking.step / 2 / sum(u.report.num_examples for u in recorded)
        assert quantum < 1e-7
        for name, value in expected.items():
            np.testing.assert_allclose(state.tensors[name], value, rtol=2.5e-7, atol=quantum + 1e-8, err_msg=name)
        sent = read_tensor_file(running.federation.blobs.path(order.weights.digest), where="weights")
        for update in recorded:
            path = running.federation.blobs.path(update.update_digest)
            tensors = read_tensor_file(path, where="masked update")
            assert set(tensors) == {*order.upload, WEIGHT}
            words = np.concatenate([v.reshape(-1).view(np.uint32) for v in tensors.values()])
            # Uniform 32-bit words: every bit is set in half of them; ten standard errors either side.
            shares = [(words >> np.uint32(bit) & np.uint32(1)).mean() for bit in range(32)]
            assert np.abs(np.asarray(shares) - 0.5).max() < 10 * 0.5 / np.sqrt(len(words))
            own = updates[update.assignment.device]
            whole = np.concatenate(
                [
                    np.rint((own[n].astype(np.float64) - sent[n]) * update.report.num_examples / order.masking.step)
                    .astype(np.int64).astype(np.uint32).reshape(-1)
                    for n in order.upload
                ]
            )  # fmt: skip
            entries = np.concatenate([tensors[n].reshape(-1).view(np.uint32) for n in order.upload])
            assert (entries == whole).mean() < 1e-3
        files = [path.read_bytes() for path in (masked / "blobs").rglob("*") if path.is_file()]
        for own in updates.values():
            largest = max(own.values(), key=lambda value: value.nbytes)
            assert not any(largest.tobytes()[:64] in data for data in files)


def test_devices_that_vanish_after_sharing_keys_leave_the_survivors_exact_sum(exports: Path, tmp_path: Path) -> None:
    text = text_of(MASKED + "recovery-share = 0.6\n", min_reports=3, deadline_s=12.0)
    plain, masked = folders(tmp_path)
    with InProcessFederation(masked, exports, text) as running:
        start_agents(running)
        hold_back(running, "d1", "d3")
        gone: list[str] = []

        def on_point(point: str) -> None:
            if point == "collecting" and not gone and running.ledger.masking.of_attempt(0, 0, "proceed"):
                for device in ("d1", "d3"):
                    vanish(running, device)
                    gone.append(device)

        running.on_point = on_point
        state = running.run()
        (entry,) = [r for r in running.ledger.rounds.all() if r.state == "committed"]
        assert entry.attempt == 0
        assert entry.participants == ("d0", "d2", "d4")
        tensors = dict(state.tensors)
    with InProcessFederation(plain, exports, text_of("", min_reports=3)) as running:
        start_agents(running)
        running.run()
        recorded = [u for u in running.ledger.updates.of_attempt(0, 0) if u.assignment.device in ("d0", "d2", "d4")]
        total = sum(u.report.num_examples for u in recorded)
        for name, value in tensors.items():
            parts = [
                read_tensor_file(running.federation.blobs.path(u.update_digest), where="u")[name].astype(np.float64)
                * u.report.num_examples
                for u in recorded
            ]
            np.testing.assert_allclose(value, sum(parts) / total, rtol=2.5e-7, atol=1e-7, err_msg=name)


class Stopped(BaseException):
    """The coordinator's round ends here; what goes on afterwards knows nothing but the ledger."""


KINDS = ("keys", "roster", "shares", "mail", "checked", "proceed", "reveal", "revealed")


def test_round_that_ends_in_every_phase_goes_on_from_the_ledger(exports: Path, tmp_path: Path) -> None:
    with InProcessFederation(tmp_path, exports, text_of()) as running:
        start_agents(running)
        left, at_end = [*KINDS], dict[str, dict[str, bytes]]()

        def on_point(point: str) -> None:
            if point == "committed":
                at_end.update((kind, running.ledger.masking.of_attempt(0, 0, kind)) for kind in KINDS)
            # Devices may have answered before the round looks again: it then sums without collecting any more.
            if point in ("collecting", "aggregating") and left and running.ledger.masking.of_attempt(0, 0, left[0]):
                left.pop(0)
                raise Stopped

        running.on_point = on_point
        before = []
        for _ in KINDS:
            with pytest.raises(Stopped):
                running.run()
            before += [
                (k, running.ledger.masking.of_attempt(0, 0, k)) for k in ("keys", "shares", "checked", "revealed")
            ]
        running.run()
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.state, len(entry.participants)) == (0, "committed", DEVICES)
        for name, rows in before:
            assert rows.items() <= at_end[name].items()
        assert not any(running.ledger.masking.of_attempt(0, 0, kind) for kind in KINDS)  # forgotten with the run's end


def test_agent_that_starts_again_between_keys_and_training_is_in_the_sum(exports: Path, tmp_path: Path) -> None:
    """Its masks come from its disk: with others the weights in the sum would not be the reported ones."""
    with InProcessFederation(tmp_path, exports, text_of()) as running:
        start_agents(running)
        hold_back(running, "d1")
        again: list[str] = []

        def on_point(point: str) -> None:
            if point == "collecting" and not again and running.ledger.masking.of_attempt(0, 0, "proceed"):
                again.append("d1")
                vanish(running, "d1")
                running._agents["d1"][1].join(10)
                running.agent("d1")

        running.on_point = on_point
        running.run()
        assert again == ["d1"]
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.participants) == (0, ("d0", "d1", "d2", "d3", "d4"))


def test_masked_sum_with_noise_is_of_clipped_differences_of_equal_weight(exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    text = text_of(MASKED + "clip-norm = 0.25\nnoise-multiplier = 1e-6\n")
    with InProcessFederation(tmp_path, exports, text) as running:
        start_agents(running)
        state = running.run()
        (order, *_) = [read_order(u.assignment.order) for u in running.ledger.updates.of_attempt(0, 0)]
        assert order.masking is not None
        assert (order.masking.is_weighted, order.masking.clip_norm, order.masking.max_weight) == (False, 0.25, 1)
        sent = read_tensor_file(running.federation.blobs.path(order.weights.digest), where="weights")
        moved = {name: value.astype(np.float64) - sent[name] for name, value in state.tensors.items()}
        # All five are longer than the clip norm; their mean is no longer than it, and far from nothing.
        assert 0.05 < np.sqrt(sum(float((value**2).sum()) for value in moved.values())) <= 0.25 * (1 + 1e-4)
        assert running.ledger.rounds.all()[0].metrics["privacy"]["cohort"] == DEVICES


def test_too_few_survivors_repeat_the_round(exports: Path, tmp_path: Path) -> None:
    """Three of five vanish; the sum of two is not unmasked, and with nobody else there the run says why."""
    text = text_of(MASKED, min_reports=2, deadline_s=8.0, join_timeout_s=8.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        start_agents(running)
        hold_back(running, "d1", "d3", "d4")
        gone: list[str] = []

        def on_point(point: str) -> None:
            if point == "collecting" and not gone and running.ledger.masking.of_attempt(0, 0, "proceed"):
                for device in ("d1", "d3", "d4"):
                    vanish(running, device)
                    gone.append(device)

        running.on_point = on_point
        with pytest.raises(Exception, match=r"masked sum|said hello|2 devices"):
            running.run()
        assert running.ledger.rounds.all()[0].state == "abandoned"
        assert COORDINATOR not in running.ledger.masking.of_attempt(0, 0, "reveal")


def test_devices_that_another_run_had_unmask_this_model_are_asked_once(exports: Path, tmp_path: Path) -> None:
    text = text_of(MASKED, size=4, local=4, min_reports=4, deadline_s=30.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        start_agents(running, 8)

        def told(taken: Assignment) -> Refuse:
            return taken.refusal(TOLD, "masks were taken off before")

        for device in ("d0", "d2", "d4", "d6"):
            running._agents[device][0]._masker.refusal = told  # type: ignore[method-assign]
        running.run()
        *failed, made = running.ledger.rounds.all()
        assert made.participants == ("d1", "d3", "d5", "d7")
        asked = [e.device for r in failed for e in running.ledger.assignments.of_attempt(0, r.attempt, "refused")]
        assert sorted(asked) == sorted({*asked})
        assert running.ledger.masking.liars() == frozenset()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of the masked run that nobody kills."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    start_run(load_config_text(text_of()), run_dir, RunOptions(quiet=True))
    return final_bytes(run_dir)


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


@pytest.mark.broker
@pytest.mark.parametrize(
    ("point", "occurrence"), [("planned", 1), ("collecting", 2), ("aggregating", 1), ("before-commit", 1)]
)
def test_coordinator_killed_in_a_masked_round_ends_as_the_undisturbed_run(
    point: str, occurrence: int, undisturbed: bytes, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, point, occurrence, text=text_of())
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == undisturbed
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert [(r.attempt, r.state) for r in ledger.rounds.all()] == [(0, "committed")]


def test_device_without_the_ability_is_not_selected_and_the_reason_is_shown(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.supervisor.presence.is_able", lambda: False)
    with InProcessFederation(tmp_path, exports, text_of(join_timeout_s=3.0)) as running:
        start_agents(running, 1)
        with pytest.raises(DeadlineExpired, match=r"d0 lacks what this run needs: masking"):
            running.run()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "fedavg"', 'name = "fedhm"\nlevels = [4]'), "method 'fedhm'.*products of factors"),
        (('name = "fedavg"', 'name = "fedavg"\n[aggregation]\nrule = "krum"'), "rule 'krum' needs each update"),
        (('name = "fedavg"', 'name = "fedavg"\n[defences]\nquarantine-factor = 3.0'), "judges each update"),
        (
            ('name = "fedavg"', 'name = "fedavg"\n[defences]\nexamples-factor = 2.0'),
            "examples-factor weighs each update",
        ),
        (('name = "fedavg"', 'name = "fedavg"\n[updates]\nprecision = "fp16"'), "whole numbers of 32 bits"),
        (("secure-aggregation = true", "mask-range = 2.0"), "belongs to secure-aggregation = true"),
    ],
)
def test_what_a_sum_alone_does_not_allow_is_refused_with_the_reason(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config_text(text_of().replace(*change))


def test_one_hello_does_not_make_the_sum_too_coarse(exports: Path, tmp_path: Path) -> None:
    """A device that says it has 2^40 examples weighs as 16 median ones do; its reports say what it has."""
    with InProcessFederation(tmp_path, exports, text_of()) as running:
        start_agents(running)
        presence = running._agents["d1"][0]._presence
        hello = presence.hello
        presence.hello = lambda *state: msgspec.structs.replace(hello(*state), num_examples=2**40)  # type: ignore[method-assign]
        state = running.run()
        (order, *_) = [read_order(u.assignment.order) for u in running.ledger.updates.of_attempt(0, 0)]
        assert order.masking is not None
        assert 1000 < order.masking.max_weight < 10_000
        sent = read_tensor_file(running.federation.blobs.path(order.weights.digest), where="weights")
        assert all((state.tensors[name] != value).mean() > 0.5 for name, value in sent.items())
