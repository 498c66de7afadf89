"""Three nodes of RabbitMQ 4, one killed in the middle of a round: the round completes, and nothing is lost.

The model has the bits of a run that nobody disturbed, over another broker: every update counted exactly once.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import coordinator_files, local_device_files
from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.identity.authority import Authority
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts import topics
from edge.transport.base import Connected, Disconnected
from tests.federation.small_run import config_text
from tests.rabbitmq.client import Client
from tests.rabbitmq.cluster import Cluster

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.runtime,
    # A handshake with a node that was just killed leaves paho's socket to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
DEVICES, ROUNDS, FEDERATION = 6, 2, "small"
LOCAL = tuple(f"device-{i:02d}" for i in range(DEVICES))
WATCHERS = tuple(f"watcher-{i}" for i in range(9))


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "identity"
    with Authority.create(folder) as authority:
        authority.issue_server(["localhost", "127.0.0.1"])
    coordinator_files(folder, FEDERATION, issue=True)
    for device in LOCAL + WATCHERS:
        local_device_files(folder, device)
    return folder


@pytest.fixture(scope="module")
def cluster(rabbitmq_root: Path, identity: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(rabbitmq_root, tmp_path_factory.mktemp("rabbitmq"), identity, 3) as cluster:
        cluster.wait_for_members(3)
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(rabbitmq_root: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    text = config_text(rounds=ROUNDS, local=DEVICES, size=DEVICES)
    start_run(load_config_text(text), run_dir, RunOptions(quiet=True))
    return final_bytes(run_dir)


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


def assert_counted_once(run_dir: Path) -> None:
    """Every round was committed at its first attempt, with one update of each device."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert ledger.federation().state == "finished"
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (i, 0, "committed") for i in range(ROUNDS)
        ]
        for entry in ledger.rounds.all():
            devices = [update.assignment.device for update in ledger.updates.of_attempt(entry.round, entry.attempt)]
            assert devices == sorted(LOCAL) == list(entry.participants)


@pytest.mark.parametrize(
    ("point", "occurrence", "whose"),
    [("collecting", 2, "coordinator"), ("published", 2, "devices"), ("mid-upload", 3, "coordinator")],
)
def test_node_killed_in_the_middle_of_a_round(
    cluster: Cluster, identity: Path, undisturbed: bytes, tmp_path: Path, point: str, occurrence: int, whose: str
) -> None:
    """Its clients go on at another node; it comes back and is a member again."""
    run_dir, passed, killed = tmp_path / "run", itertools.count(1), []

    def on_point(name: str) -> None:
        # Points are passed in several threads; one alone draws the number.
        if name == point and next(passed) == occurrence:
            at = cluster.connections()
            nodes = Counter(node for user, node in at.items() if user in LOCAL)
            wanted = at[f"@{FEDERATION}"] if whose == "coordinator" else nodes.most_common(1)[0][0]
            node = next(node for node in cluster.nodes if str(node) == wanted)
            cluster.kill(node)
            killed.append(node)
            print(f"{node} killed at {point} {occurrence}; connections before: {dict(Counter(at.values()))}")

    broker = f'url = "{cluster.url}"\nidentity = "{identity}"'
    text = config_text(broker=broker, rounds=ROUNDS, local=DEVICES, size=DEVICES)
    started = time.monotonic()
    start_run(load_config_text(text), run_dir, RunOptions(quiet=True, on_point=on_point))
    print(f"the run took {time.monotonic() - started:.1f} s")
    assert len(killed) == 1
    assert_counted_once(run_dir)
    assert final_bytes(run_dir) == undisturbed
    logs = [(run_dir / "devices" / device / "agent.log").read_text() for device in LOCAL]
    assert any("lost" in log for log in logs)
    cluster.start(killed[0])
    cluster.wait_for(killed[0])
    cluster.wait_for_members(3)


def test_clients_of_a_killed_node_are_heard_again_within_seconds(cluster: Cluster, identity: Path) -> None:
    """Each node in turn: from the kill to the first message that comes through by another node."""
    ca, took = str(identity / "ca.pem"), []
    own = coordinator_files(identity, FEDERATION, issue=False)
    coordinator = Client(cluster.url, ca, own, f"@{FEDERATION}", topics.coordinator_filter(FEDERATION))
    clients = {
        name: Client(cluster.url, ca, local_device_files(identity, name), name, *topics.device_filters("small", name))
        for name in WATCHERS
    }
    try:
        for node in cluster.nodes:
            at = cluster.connections()
            moved = [name for name in WATCHERS if at[name] == str(node)]
            with_coordinator = at[f"@{FEDERATION}"] == str(node)
            assert all(client.heard(0.01) == [] for client in clients.values())
            started = time.monotonic()
            cluster.kill(node)
            if with_coordinator:
                coordinator.wait_until(Disconnected)
                coordinator.wait_until(Connected)
                took.append(time.monotonic() - started)
            for name in moved:
                clients[name].wait_until(Disconnected)
                clients[name].wait_until(Connected)
                clients[name].transport.publish(topics.up(FEDERATION, name, "hello"), b"")
                coordinator.wait_for(topics.up(FEDERATION, name, "hello"))
                took.append(time.monotonic() - started)
            cluster.start(node)
            cluster.wait_for(node)
            cluster.wait_for_members(3)
    finally:
        for client in (coordinator, *clients.values()):
            client.transport.stop()
    print(f"{len(took)} moves: median {statistics.median(took):.2f} s, longest {max(took):.2f} s")
    assert len(took) >= 9
    assert max(took) < 10.0
