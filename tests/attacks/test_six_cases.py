"""Six ways in which one device, or one run, ended or unmasked a federation: each again, in a federation that goes on.

Every case plays a real federation in which somebody does it, and says what came of it: ``pytest -s`` prints the table.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import paho.mqtt.client as mqtt
import pytest

from coordinator.brokers.broker_files import local_device_files
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.config.canonical import canonical_toml
from coordinator.identity.authority import Authority
from coordinator.ledger.ledger import Ledger
from coordinator.rounds.run import run_rounds
from coordinator.run_file.loading import load_config_text
from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.messages import Hello
from edge.contracts.plan import WorkOrder
from edge.contracts.tensor_file import read_tensor_file
from profiles.device import DeviceProfile
from tests.coordinator.rounds.test_engine import distilling, federation_of
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text
from tests.federation.test_masking_lies import lies, zero_key
from tests.federation.test_secure_aggregation import MASKED, start_agents, text_of

pytestmark = [pytest.mark.runtime, pytest.mark.slow]
Case = Callable[[Path, Path, pytest.MonkeyPatch], str]


def masked_uploads(folder: Path, exports: Path) -> dict[str, np.ndarray]:
    """What each device of a masked run of one round sent, as one vector of 32-bit words."""
    folder.mkdir()
    with InProcessFederation(folder, exports, text_of(MASKED)) as running:
        start_agents(running)
        running.run()
        updates = running.ledger.updates.of_attempt(0, 0)
        store = running.federation.blobs
        tensors = {u.assignment.device: read_tensor_file(store.path(u.update_digest), where="update") for u in updates}
    return {
        device: np.concatenate([named[name].ravel() for name in sorted(named)]).view(np.uint32)
        for device, named in tensors.items()
    }


def two_runs(folder: Path, exports: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same devices train the same twice: with the same masks, the differences would be 0."""
    first, second = (masked_uploads(folder / name, exports) for name in ("first", "second"))
    assert len(first) == 5
    furthest = 0.0
    for device, words in first.items():
        apart = (words - second[device]).view(np.int32).astype(np.float64) / 2**31
        assert abs(apart.mean()) < 0.05
        assert apart.std() == pytest.approx(3**-0.5, abs=0.03)  # as of uniform words
        furthest = max(furthest, *(abs(np.corrcoef(apart, other.view(np.int32))[0, 1]) for other in second.values()
                                   if other is not second[device]))  # fmt: skip
    assert furthest < 0.1
    return f"the differences are uniform words, correlation with other uploads at most {furthest:.2f}"


def zero_masking_key(folder: Path, exports: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    text = text_of(MASKED, size=4, local=4, min_reports=3, deadline_s=40.0)
    with InProcessFederation(folder, exports, text) as running:
        start_agents(running, 4)
        lies(running, "d1", zero_key)
        running.run()
        assert running.committed() == [(0, 0, ["d0", "d2", "d3"])]
        assert running.ledger.masking.liars() == {"d1"}
    return "round made at once by the others; d1 is named and barred"


def retained_flood(folder: Path, exports: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device with a certificate, while the round goes on: the broker ends its connection each time."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here")
    identity = folder / "identity"
    Authority.create(identity).close()
    files = local_device_files(identity, "mallory")
    ended: list[str] = []
    kept: list[mqtt.MQTTMessage] = []

    def connected() -> mqtt.Client:
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="mallory")
        client.tls_set(str(files.ca), str(files.certificate), str(files.key))
        client.tls_insecure_set(True)
        port = msgspec.json.decode((folder / "run" / "broker" / "broker.json").read_bytes())["port"]
        client.connect("127.0.0.1", port)
        client.loop_start()
        return client

    def flood(point: str) -> None:
        if point != "published":
            return
        for _ in range(3):
            mallory = connected()
            mallory.on_disconnect = lambda *told: ended.append(str(told[3])) if told[3].is_failure else None
            for index in range(100):
                topic = topics.up("small", "mallory", f"hello-{index}")
                mallory.publish(topic, b"x" * 10_000, qos=0, retain=True)
            time.sleep(0.3)
            mallory.disconnect()
            mallory.loop_stop()
        later = connected()
        later.on_message = lambda client, data, message: kept.append(message)
        later.subscribe("#", 1)
        time.sleep(1.5)  # the broker's log is looked at every half second
        later.disconnect()
        later.loop_stop()

    config = load_config_text(config_text(broker=f'url = "mosquitto"\nidentity = "{identity}"', rounds=1))
    summary = start_run(config, folder / "run", RunOptions(quiet=True, on_point=flood))
    assert summary["committed_rounds"] == 1
    assert [message for message in kept if message.retain] == []
    assert len(ended) >= 3, ended  # ours would be no failure
    with contextlib.closing(Ledger.open(folder / "run" / "ledger.sqlite")) as ledger:
        named = [entry for entry in ledger.audit_log.entries(device="mallory") if entry.action == "device-named"]
        others = [entry for entry in ledger.audit_log.entries() if entry.action == "device-named"]
    assert named
    assert named == others
    why = msgspec.json.decode(named[0].details)["why"]
    return f"round made; nothing is kept, the connection ended {len(ended)} times; named: {why}"


def huge_weights(size: float) -> Case:
    def case(folder: Path, exports: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        said = []
        for rule in ("mean", "median"):
            text = distilling("feddf", rule).replace("min-reports = 2", "min-reports = 3")
            steps = {"a": 0.0, "b": 0.01, "mallory": size, "d": -0.01, "e": 0.02}
            place = folder / f"{rule}.sqlite"
            config = canonical_toml(load_config_text(text))
            with Ledger.create(place, federation="in-memory", config=config, seed=1) as ledger:
                run_rounds(federation_of(folder / rule, ledger, steps, text))
                rounds = [r for r in ledger.rounds.all() if r.state == "committed"]
                aside = {entry.device for entry in ledger.quarantine.all()}
            assert len(rounds) == 2
            assert {r.attempt for r in rounds} == {0}
            assert aside <= {"mallory"}
            assert aside or size < 1e20
            said.append(f"{rule}: {'set aside by name' if aside else 'taken as a value like others'}")
        return f"both rounds made at once ({'; '.join(said)})"

    return case


def hostile_round(folder: Path, exports: Path, behave: Callable[[HostileDevice, WorkOrder], None], kind: str) -> str:
    """A round of two honest agents and a device that lies; what the coordinator said of it."""
    with InProcessFederation(
        folder, exports, config_text(rounds=1, local=0, size=2 if kind == "hello" else 3, min_reports=2)
    ) as running:
        hostile: type[HostileDevice] = HugeHello if kind == "hello" else HostileDevice
        mallory: HostileDevice
        with hostile(running.broker, running.name, "mallory", lambda order: behave(mallory, order)) as mallory:
            for share, device in enumerate(("d0", "d1")):
                running.write_data(device, share)
                running.agent(device)
            running.run()
            assert running.committed() == [(0, 0, ["d0", "d1"])]
            told = running.lines.having("mallory", "cannot be read" if kind == "hello" else "rejected")
            assert told
            return told[0]


class HugeHello(HostileDevice):
    """Says that its supervisor takes 2^63 bytes, and is honest otherwise."""

    def hello(self) -> None:
        profile = DeviceProfile(device=self.device, supervisor_idle_bytes=2**63)
        runtimes = {"onnxruntime": "1"}
        body = Hello(device=self.device, agent_version="0", profile=profile, runtimes=runtimes, num_examples=9)
        self.send_bytes("hello", seal("hello", body))


def infinite_loss(folder: Path, exports: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def behave(device: HostileDevice, order: WorkOrder) -> None:
        device.report(order, device.upload(order, device.update(order)), loss=float("inf"))
        ack = device.wait_ack(order)
        assert (ack.accepted, ack.code) == (False, "update-rejected")

    line = hostile_round(folder, exports, behave, "report")
    assert "loss" in line
    return f"round made at once; told: {line.strip()[:90]}"


def huge_hello(folder: Path, exports: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    line = hostile_round(folder, exports, HostileDevice.finish, "hello")
    return f"round made at once; told: {line.strip()[:90]}"


CASES: dict[str, tuple[str, Case]] = {
    "two runs of one federation": ("five single updates, error 3e-8", two_runs),
    "a zero key": ("every honest agent of the cohort ended", zero_masking_key),
    "a retained flood": ("coordinator and devices cut off at every publish", retained_flood),
    "weights of 1e15 under FedDF": ("the run ended for good", huge_weights(1e15)),
    "weights of 1e25 under FedDF": ("the run ended for good", huge_weights(1e25)),
    "an infinite loss": ("every run and resume stopped at its end", infinite_loss),
    "a hello of 2^63": ("the coordinator ended in planning", huge_hello),
}
"""Case -> what it did before, and what plays it now and says what came of it."""


@pytest.mark.parametrize("case", CASES)
def test_round_is_made_and_whoever_tried_is_named(
    case: str, exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, play = CASES[case]
    now = play(tmp_path, exports, monkeypatch)
    assert now
    print(f"\n| {case} | {before} | {now} |")
