"""A federation inside the test's process: the real coordinator and real agents over the in-memory broker.

Trainers are real children. Exports are kept for the whole session, since every test trains the same submodel.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.blobs.blob_store import BlobStore
from coordinator.cli.open_run import RunOptions, open_federation
from coordinator.config.canonical import canonical_toml
from coordinator.data.datasets import load_dataset
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import device_shares
from coordinator.planning.artifacts import Artifacts
from coordinator.reporting.progress import Progress
from coordinator.rounds.evaluators import run_evaluator
from coordinator.rounds.federation import Federation
from coordinator.rounds.run import run_rounds
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import State
from edge.agent import Agent
from edge.contracts import topics
from edge.supervisor.outbox import farewell_message
from edge.supervisor.settings import AgentSettings
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.base import Transport
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from tests.remembered_exports import RememberingExporter


class Lines:
    """What people see, kept as a list; a text stream for :class:`Progress`."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def having(self, *words: str) -> list[str]:
        """The lines with all of ``words``."""
        return [line for line in self.text.splitlines() if all(word in line for word in words)]


class InProcessFederation:
    """One federation and its devices; a context manager.

    Attributes:
        on_point: called with every point of a round, in the round's thread.
        lines: what the coordinator told people.
    """

    def __init__(self, folder: Path, exports: Path, text: str) -> None:
        self.folder = folder
        self.config = load_config_text(text)
        self.name = self.config.federation.name
        self.broker = InMemoryBroker()
        self.lines = Lines()
        self.on_point: Callable[[str], None] = lambda point: None
        self.dataset = load_dataset(self.config.data.source, None, self.config.federation.seed)
        self.shares = device_shares(self.config, self.dataset, self.config.cohort.size)
        self.failures: list[BaseException] = []
        self._exports = exports
        self._agents: dict[str, tuple[Agent, threading.Thread]] = {}
        self._stack = contextlib.ExitStack()
        self.federation: Federation

    def __enter__(self) -> InProcessFederation:
        self.ledger = self._stack.enter_context(
            Ledger.create(
                self.folder / "ledger.sqlite",
                federation=self.name,
                config=canonical_toml(self.config),
                seed=self.config.federation.seed,
            )
        )
        self._stack.callback(self.stop_agents)
        self.federation = self._stack.enter_context(self._open())
        return self

    @contextlib.contextmanager
    def _open(self) -> Iterator[Federation]:
        config, dataset = self.config, self.dataset
        blobs = BlobStore(self.folder / "blobs")
        evaluator = run_evaluator(config, dataset.x_test, dataset.y_test)
        with open_federation(
            config,
            method_of_run(config, dense_module(config)),
            self.ledger,
            blobs,
            evaluator,
            InMemoryTransport(self.broker, subscriptions=(topics.coordinator_filter(self.name),)),
            Progress(stream=self.lines),  # type: ignore[arg-type]
            RunOptions(on_point=lambda point: self.on_point(point)),
        ) as federation:
            exporter = RememberingExporter(CutExporter(config), self._exports)
            yield replace(federation, artifacts=Artifacts(exporter, self.ledger, blobs))

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def write_data(self, device: str, share: int) -> Path:
        """The device's folder with its share of the digits."""
        folder = self.folder / "devices" / device / "data"
        folder.mkdir(parents=True)
        indices = self.shares[share]
        np.savez(folder / "part.npz", x=self.dataset.x_train[indices], y=self.dataset.y_train[indices])
        return folder

    def agent(self, device: str, *, transport: Transport | None = None, **settings: Any) -> Agent:
        """A started agent called ``device``, whose data is there already."""
        folder = self.folder / "devices" / device
        chosen = AgentSettings(
            federation=self.name,
            device=device,
            data=str(folder / "data"),
            python=sys.executable,
            heartbeat_s=0.5,
            **settings,
        )
        agent = Agent(chosen, transport or self.transport(device), ArtifactStore(folder / "store"))

        def run() -> None:
            try:
                agent.run()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, name=device)
        thread.start()
        self._agents[device] = (agent, thread)
        return agent

    def transport(self, device: str) -> InMemoryTransport:
        """A device's connection."""
        return InMemoryTransport(
            self.broker,
            subscriptions=topics.device_filters(self.name, device),
            will=farewell_message(self.name, device, "connection lost"),
        )

    def stop_agents(self) -> None:
        """Ask every agent to end, and wait for it."""
        for agent, _ in self._agents.values():
            agent.stop("test over")
        for name, (_, thread) in self._agents.items():
            thread.join(10)
            assert not thread.is_alive(), f"{name} did not end"
        self._agents.clear()
        assert self.failures == []

    def run(self) -> State:
        """Every round, in this thread."""
        return run_rounds(self.federation)

    def committed(self) -> list[tuple[int, int, list[str]]]:
        """(round, attempt, participants) of every committed round, each participant with exactly one update."""
        found = []
        for entry in self.ledger.rounds.all():
            if entry.state == "committed":
                devices = [u.assignment.device for u in self.ledger.updates.of_attempt(entry.round, entry.attempt)]
                assert devices == list(entry.participants)
                found.append((entry.round, entry.attempt, devices))
        return found
