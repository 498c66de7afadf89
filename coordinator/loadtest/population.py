"""A process of light devices: ``python -m coordinator.loadtest.population``, settings on stdin, figures on stdout.

One asyncio loop, one connection a device. Connections are made at a bounded rate; lost ones again after a second, as
agents do, those that a test cuts at once. On stdin, after the settings, a line ``end`` or its end ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import ssl
import sys
import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import msgspec

from coordinator.loadtest.connection import Connection
from coordinator.loadtest.figures import Figures
from coordinator.loadtest.light_device import LightDevice, Ways
from coordinator.loadtest.stand_in import Shelf
from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.errors import ApportionError, BrokerUnreachable
from edge.contracts.messages import Bye

TICK_S = 0.25
AT_ONCE = 64
"""Connections being made at the same time by one process."""

CONNECT_TIMEOUT_S = 30.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of light devices is started with.

    Attributes:
        devices: their names.
        certificates: folder with ``<device>.pem`` and ``key.pem``, which all share; empty without mutual TLS.
        connects_per_s: the most new connections a second.
        hello_spread_s: devices answer a call to everyone within this many seconds, drawn for each.
        probes_per_s: control round trips that idle devices begin, together.
    """

    broker: str
    user: str
    password: str
    ca: str
    certificates: str
    federation: str
    devices: tuple[str, ...]
    runtimes: dict[str, str]
    connects_per_s: float = 1000.0
    keepalive_s: int = 60
    heartbeat_s: float = 25.0
    hello_spread_s: float = 5.0
    probes_per_s: float = 10.0
    cuts: int = 0
    fetches: bool = True


class Event(msgspec.Struct, frozen=True):
    """A line of stdout: ``connected`` once, ``figures`` every second without trips, ``end`` with all; or ``failed``."""

    event: str
    figures: Figures
    message: str = ""


class _Link:
    """A device's connection, made again when it is lost."""

    def __init__(self, population: Population, device: LightDevice) -> None:
        self._population, self._device = population, device
        self.connection: Connection | None = None
        self._is_cut = False

    def send(self, kind: str, body: Any, *, qos: int, message_id: str | None = None) -> None:
        connection, settings = self.connection, self._population.settings
        if connection is not None:
            topic = topics.up(settings.federation, self._device.name, kind)
            connection.publish(topic, seal(kind, body, message_id=message_id), qos=qos)

    def cut(self) -> None:
        self._is_cut = True
        if self.connection is not None:
            self.connection.cut()

    async def connect(self) -> None:
        settings, device = self._population.settings, self._device
        loop = asyncio.get_running_loop()
        parts = urlsplit(settings.broker)
        will = topics.up(settings.federation, device.name, "bye"), seal("bye", Bye("connection lost"))
        connection = Connection(
            device.name,
            topics.device_filters(settings.federation, device.name),
            on_message=self._received,
            on_lost=self._lost,
            count=device.count,
            keepalive_s=settings.keepalive_s,
            user=settings.user,
            password=settings.password,
            will=will,
            tls=self._tls(),
            host=parts.hostname or "",
        )
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_connection(lambda: connection, parts.hostname or "", parts.port or 0)
            await connection.ready
        self.connection, self._is_cut = connection, False
        device.reconnected(loop.time())

    def _tls(self) -> ssl.SSLContext | None:
        settings = self._population.settings
        if not settings.broker.startswith("mqtts"):
            return None
        if not settings.certificates:
            return self._population.shared_tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(settings.ca)
        folder = settings.certificates
        context.load_cert_chain(f"{folder}/{self._device.name}.pem", f"{folder}/key.pem")
        return context

    def _received(self, topic: str, payload: bytes) -> None:
        loop = asyncio.get_running_loop()
        hello_in_s = self._device.receive(topic, payload, loop.time())
        if hello_in_s == 0.0:
            self._device.hello()
        elif hello_in_s > 0.0:
            spread = self._population.settings.hello_spread_s * self._population.draws.random()
            loop.call_later(spread, self._device.hello)

    def _lost(self) -> None:
        self.connection = None
        population = self._population
        if not population.is_ending:
            population.figures.tally("reconnects")
            population.start(self._again(0.0 if self._is_cut else 1.0))

    async def _again(self, wait_s: float) -> None:
        while not self._population.is_ending:
            await asyncio.sleep(wait_s)
            with contextlib.suppress(OSError, TimeoutError, ApportionError, ssl.SSLError):
                await self.connect()
                return
            wait_s = min(30.0, 2 * max(0.5, wait_s))


class Population:
    """The devices of this process and what they do over time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.figures = Figures()
        self.draws = random.Random(settings.devices[0] if settings.devices else "")
        self.is_ending = False
        self.shared_tls = ssl.create_default_context(cafile=settings.ca) if settings.ca else None
        ways = Ways(settings.federation, settings.runtimes, settings.cuts, settings.fetches)
        shelf = Shelf()
        self._training: deque[LightDevice] = deque()
        self.devices = [
            LightDevice(name, ways, shelf, self.figures, trains=self._training.append) for name in settings.devices
        ]
        self._links = [_Link(self, device) for device in self.devices]
        for device, link in zip(self.devices, self._links, strict=True):
            device.link = link
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Any) -> None:
        """Run a coroutine until it or the process ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Connect every device, then live until stdin ends."""
        began = time.monotonic()
        await self._connect_all()
        self.figures.connect_s = time.monotonic() - began
        self._say("connected")
        for work in (self._tick(), self._beat(), self._train(), self._probes(), self._tell()):
            self.start(work)
        await asyncio.to_thread(sys.stdin.readline)
        self.is_ending = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for number, link in enumerate(self._links):
            if link.connection is not None:
                link.connection.close()
            if number % 200 == 199:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        self._say("end")

    async def _connect_all(self) -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        began, rate = time.monotonic(), self.settings.connects_per_s

        async def one(number: int, link: _Link) -> None:
            async with gate:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                await link.connect()

        work = [one(number, link) for number, link in enumerate(self._links)]
        found = await asyncio.gather(*work, return_exceptions=True)
        failures = [error for error in found if isinstance(error, BaseException)]
        if failures:
            raise BrokerUnreachable(
                f"{len(failures)} of {len(found)} devices could not connect to {self.settings.broker}: "
                f"{failures[0]!r}; fewer devices, or raise the broker's limits (docs/scale.md)"
            )

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        expected = loop.time()
        while True:
            now = loop.time()
            self.figures.lag_ms = max(self.figures.lag_ms, 1000 * (now - expected))
            for device in self.devices:
                if device.is_busy:
                    device.tick(now)
            expected = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)

    async def _beat(self) -> None:
        """Every device's heartbeat, spread evenly; pings where connections would be quiet for their keep-alive."""
        loop, number = asyncio.get_running_loop(), 0
        began = loop.time()
        while True:
            due = int((loop.time() - began) / self.settings.heartbeat_s * len(self.devices))
            for _ in range(min(due - number, len(self.devices))):
                self.devices[number % len(self.devices)].heartbeat()
                number += 1
            number = max(number, due)
            self._ping(loop.time())
            await asyncio.sleep(0.02)

    def _ping(self, now: float) -> None:
        if self.settings.heartbeat_s < 0.75 * self.settings.keepalive_s:
            return
        for link in self._links:
            if link.connection is not None and now - link.connection.sent_at > 0.75 * self.settings.keepalive_s:
                link.connection.ping()

    async def _train(self) -> None:
        """One update at a time, messages in between: a device's work must not hold up another's round trip."""
        loop = asyncio.get_running_loop()
        while True:
            if self._training:
                self._training.popleft().train(loop.time())
            await asyncio.sleep(0 if self._training else 0.005)

    async def _probes(self) -> None:
        loop = asyncio.get_running_loop()
        while self.settings.probes_per_s and self.devices:
            self.draws.choice(self.devices).probe(loop.time())
            await asyncio.sleep(1 / self.settings.probes_per_s)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._say("figures")

    def _say(self, event: str) -> None:
        figures = self.figures
        figures.socket_sent = sum(device.count.sent for device in self.devices)
        figures.socket_received = sum(device.count.received for device in self.devices)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        figures.cpu_s = usage.ru_utime + usage.ru_stime
        told = figures if event == "end" else msgspec.structs.replace(figures, trips_ms={})
        print(msgspec.json.encode(Event(event, told)).decode(), flush=True)


def main() -> int:
    """Run the process; its exit status."""
    settings = msgspec.json.decode(sys.stdin.readline(), type=Settings)
    try:
        asyncio.run(Population(settings).run())
    except (ApportionError, OSError) as error:
        print(msgspec.json.encode(Event("failed", Figures(), str(error))).decode(), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    # Not through the interpreter's own end: a thread still waits for a line of stdin when the loop has failed.
    status = main()
    sys.stdout.flush()
    os._exit(status)
