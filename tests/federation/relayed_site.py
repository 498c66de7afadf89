"""A site behind a relay, in the test's process: agents on a broker of their own, the relay on both."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from edge.agent import Agent
from edge.contracts import topics
from edge.relay.relay import Relay
from edge.relay.settings import RelaySettings
from edge.supervisor.outbox import farewell_message
from edge.supervisor.settings import AgentSettings
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport


class RelayedSite:
    """One relay and its agents.

    Attributes:
        broker: the site's; ``above`` is the coordinator's.
        relay: the one that runs now.
    """

    def __init__(self, folder: Path, above: InMemoryBroker, federation: str, name: str) -> None:
        self.folder = folder
        self.above = above
        self.broker = InMemoryBroker()
        self.federation, self.name = federation, name
        self.failures: list[BaseException] = []
        self.relay: Relay
        self._threads: dict[str, tuple[Agent | Relay, threading.Thread]] = {}
        self._link: InMemoryTransport

    def start_relay(self, **settings: Any) -> Relay:
        """A started relay, on the folder of the one before."""
        chosen = RelaySettings(
            **{
                "federation": self.federation,
                "device": self.name,
                "site": f"{self.name}-devices",
                "heartbeat_s": 0.5,
                **settings,
            }
        )
        self._link = InMemoryTransport(
            self.above,
            subscriptions=topics.device_filters(self.federation, self.name),
            will=farewell_message(self.federation, self.name, "connection lost"),
        )
        below = InMemoryTransport(self.broker, subscriptions=[topics.coordinator_filter(chosen.site)])
        self.relay = Relay(chosen, self._link, below, ArtifactStore(self.folder / "relay"))
        self._start("relay", self.relay)
        return self.relay

    def start_agent(self, device: str, data: Path, **settings: Any) -> Agent:
        """A started agent of the site, its examples in ``data``."""
        site = f"{self.name}-devices"
        chosen = AgentSettings(
            **{
                "federation": site,
                "device": device,
                "data": str(data),
                "python": sys.executable,
                "heartbeat_s": 0.5,
                **settings,
            }
        )
        transport = InMemoryTransport(
            self.broker,
            subscriptions=topics.device_filters(site, device),
            will=farewell_message(site, device, "connection lost"),
        )
        agent = Agent(chosen, transport, ArtifactStore(self.folder / device))
        self._start(device, agent)
        return agent

    def stop(self, *names: str) -> None:
        """End those, or everything, and wait for it."""
        chosen = names or tuple(self._threads)
        for name in chosen:
            self._threads[name][0].stop("test over")
        for name in chosen:
            thread = self._threads.pop(name)[1]
            thread.join(15)
            assert not thread.is_alive(), f"{name} did not end"
        assert self.failures == []

    def _start(self, name: str, program: Agent | Relay) -> None:
        def run() -> None:
            try:
                program.run()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, name=name)
        thread.start()
        self._threads[name] = (program, thread)
