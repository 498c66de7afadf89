"""A running agent over the in-memory broker, opposite a scripted coordinator."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from edge.agent import Agent
from edge.contracts import topics
from edge.home_assistant.home import Home
from edge.supervisor.conditions import HERE, Surroundings
from edge.supervisor.outbox import farewell_message
from edge.supervisor.settings import AgentSettings
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from tests.edge.scripted_coordinator import ScriptedCoordinator
from tests.edge.tiny_artifact import TinyJob, tiny_job, write_data


class Bench:
    """One device and one coordinator in this process; the trainer is a real child."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.x, self.y = write_data(self.data)
        self.broker = InMemoryBroker()
        transport = InMemoryTransport(self.broker, subscriptions=[topics.coordinator_filter("fed")])
        self.coordinator = ScriptedCoordinator(transport)
        self.coordinator.start()
        self._agents: list[tuple[Agent, threading.Thread]] = []
        self.failures: list[BaseException] = []

    def agent(
        self,
        *,
        hello: int = 1,
        quota_bytes: int = 0,
        around: Surroundings = HERE,
        home: Home | None = None,
        **settings: object,
    ) -> Agent:
        """A started agent that has said hello, which makes ``hello`` of them in all."""
        chosen = AgentSettings(
            **{
                "federation": "fed",
                "device": "dev-1",
                "data": str(self.data),
                "python": sys.executable,
                "heartbeat_s": 0.2,
                **settings,  # type: ignore[arg-type]
            }
        )
        transport = InMemoryTransport(
            self.broker,
            subscriptions=topics.device_filters("fed", "dev-1"),
            will=farewell_message("fed", "dev-1", "connection lost"),
        )
        agent = Agent(chosen, transport, ArtifactStore(self.folder / "store", quota_bytes=quota_bytes), around, home)

        def run() -> None:
            try:
                agent.run()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._agents.append((agent, thread))
        if hello:
            self.coordinator.wait_for("hello", count=hello)
        return agent

    def publish(self, **options: object) -> TinyJob:
        """A job whose blobs the coordinator serves."""
        job = tiny_job(**options)  # type: ignore[arg-type]
        self.coordinator.blobs.update(job.blobs)
        return job

    def stop(self) -> None:
        for agent, thread in self._agents:
            agent.stop("test over")
            thread.join(10)
            assert not thread.is_alive()
        self._agents.clear()

    def close(self) -> None:
        self.stop()
        self.coordinator.stop()
