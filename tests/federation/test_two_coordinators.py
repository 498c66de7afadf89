"""Two coordinators of one federation: whatever happens to the first one, the second ends the run with the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.data.datasets import load_dataset
from coordinator.ledger.coordination import Lease
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.local_devices.processes import LocalDevices
from coordinator.run_file.loading import load_config_text
from coordinator.shards.leadership import LEADER
from tests import waiting
from tests.federation.small_run import FORKS, config_text
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

PASSWORD = "APPORTION_TWO_COORDINATORS_PASSWORD"
FEDERATION = "small"
DEVICES, ROUNDS, LEASE_S = 4, 2, 4.0
PATIENCE_S = 240.0
wait_until = partial(waiting.wait_until, within_s=PATIENCE_S)


@dataclass
class Site:
    """What no coordinator owns: a broker, agents, a database, a folder of blobs; and what the coordinators leave."""

    text: str
    place: str
    folder: Path
    environment: dict[str, str]

    def ledger(self) -> Ledger:
        return Ledger.open(self.place, federation=FEDERATION)

    def lead_until(self, point: str, occurrence: int, how: signal.Signals) -> BaseProcess:
        """A process that begins the run and, at a point, ends or stops itself once the other one waits."""
        first, go_on = self.folder / "first", self.folder / "second-waits"
        process = FORKS.Process(
            target=_lead_until, args=(self.text, str(first), point, occurrence, int(how), str(go_on), self.environment)
        )
        process.start()
        wait_until(lambda: Ledger.exists(self.place, federation=FEDERATION) and self.leader() is not None, "the run")
        return process

    @contextlib.contextmanager
    def joined(self) -> Iterator[subprocess.Popen[bytes]]:
        """``apportion join``, once it waits for its turn."""
        command = [sys.executable, "-m", "edge", "join", self.place, "--federation", FEDERATION, "--json"]
        with self.said.open("wb") as said, (self.folder / "second.json").open("wb") as result:
            process = subprocess.Popen(
                [*command, "--run-dir", str(self.folder / "second")],
                stdout=result,
                stderr=said,
                env={**os.environ, **self.environment},
            )
        try:
            self.wait_for_words("this process waits for its lease")
            (self.folder / "second-waits").touch()
            yield process
        finally:
            process.kill()
            process.wait(30.0)

    @property
    def said(self) -> Path:
        return self.folder / "second.log"

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "second.json").read_text()))

    def leader(self) -> Lease | None:
        with self.ledger() as ledger:
            return next((lease for lease in ledger.leases.all() if lease.name == LEADER), None)

    def wait_for_words(self, words: str) -> None:
        wait_until(lambda: words in self.said.read_text(), f"'{words}' in {self.said}")

    def wait_for_new_leader(self) -> None:
        with self.ledger() as ledger:
            wait_until(
                lambda: any(lease.term > 1 and lease.left_s > 0 for lease in ledger.leases.all()), "a new leader"
            )


def _lead_until(
    text: str, run_dir: str, point: str, occurrence: int, how: int, go_on: str, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    left = occurrence

    def on_point(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0 and name == point:
            wait_until(Path(go_on).exists, "the second coordinator")
            os.kill(os.getpid(), how)

    start_run(load_config_text(text), Path(run_dir), RunOptions(on_point=on_point))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of a run with one coordinator and a ledger in a file."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    text = config_text(rounds=ROUNDS, local=DEVICES, size=DEVICES)
    start_run(load_config_text(text), run_dir, RunOptions(quiet=True))
    return final_bytes(run_dir)


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


@pytest.fixture
def site(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    config = load_config_text(config_text(local=DEVICES, size=DEVICES))
    devices = local_devices(config, load_dataset("digits", None, config.federation.seed), tmp_path / "outside", None)
    with BrokerProcess("mosquitto", tmp_path / "broker") as broker:
        address = broker.address
        place = postgres_server.new_database()
        own = config_text(
            rounds=ROUNDS,
            local=0,
            size=DEVICES,
            broker=f'url = "{address.url}"\nuser = "{address.user}"\npassword-env = "{PASSWORD}"',
        )
        store = f'[store]\nledger = "{place}"\ndir = "{tmp_path / "blobs"}"\nlease-s = {LEASE_S}\n'
        with LocalDevices(devices, address, FEDERATION) as agents:
            yield Site(f"{own}\n{store}", place, tmp_path, {PASSWORD: address.password})
            assert agents.exited() == {}


def assert_counted_once(site: Site) -> None:
    """Every round was committed once, at its first attempt, with one update of each device."""
    with site.ledger() as ledger:
        assert ledger.federation().state == "finished"
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (i, 0, "committed") for i in range(ROUNDS)
        ]
        for entry in ledger.rounds.all():
            devices = [u.assignment.device for u in ledger.updates.counted(entry.round, entry.attempt)]
            assert devices == sorted(set(devices)) == list(entry.participants)
            assert len(devices) == DEVICES
        assert ledger.audit.findings() == []


@pytest.mark.parametrize(("point", "occurrence"), [("mid-upload", 2), ("aggregated-1", 1)])
def test_killed_leader_is_followed_within_its_lease_by_one_that_ends_with_the_same_bits(
    site: Site, undisturbed: bytes, point: str, occurrence: int
) -> None:
    first = site.lead_until(point, occurrence, signal.SIGKILL)
    with site.joined() as second:
        first.join(PATIENCE_S)
        assert first.exitcode == -signal.SIGKILL
        died_at = time.monotonic()
        site.wait_for_new_leader()
        taken_s = time.monotonic() - died_at
        site.wait_for_words("device-00 is here")
        heard_s = time.monotonic() - died_at
        assert second.wait(PATIENCE_S) == 0
    print(f"killed at {point}: lease taken over after {taken_s:.2f} s, devices heard after {heard_s:.2f} s")
    assert taken_s <= LEASE_S + 2.0
    assert site.result["led_last"] is True
    assert final_bytes(site.folder / "second") == undisturbed
    assert_counted_once(site)


def test_leader_that_stood_still_counts_nothing_twice_and_waits_for_its_next_turn(
    site: Site, undisturbed: bytes
) -> None:
    # What it does next is to commit the round.
    first = site.lead_until("before-commit", 1, signal.SIGSTOP)
    assert first.pid is not None
    with site.joined() as second:
        site.wait_for_new_leader()
        os.kill(first.pid, signal.SIGCONT)
        assert second.wait(PATIENCE_S) == 0
    first.join(PATIENCE_S)
    assert first.exitcode == 0
    # The one that began the run has its results too, written when the other one was done.
    assert final_bytes(site.folder / "second") == final_bytes(site.folder / "first") == undisturbed
    assert_counted_once(site)
