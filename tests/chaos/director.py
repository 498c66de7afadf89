"""Runs one seed: starts its processes, counts events, carries faults out when they are due, starts again what died.

One thread, one loop. What was found at the end is the audit's; what is done to whom is the schedule's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from coordinator.brokers.opening import BrokerProcess
from edge.contracts.envelope import unseal
from edge.contracts.messages import Ack
from edge.contracts.topics import kind_of
from tests.chaos.commands import SECOND, Commands
from tests.chaos.damage import flip
from tests.chaos.database import Database
from tests.chaos.faults import ACTIONS, BLOBS, BROKER, COORDINATOR, DURABLE_WRITE, FSCK, Fault
from tests.chaos.forking import Forks
from tests.chaos.framing import Packet
from tests.chaos.liars.broker import LyingBroker
from tests.chaos.liars.first_word import FirstWord
from tests.chaos.liars.kinds import devices_among, told_on
from tests.chaos.relay import DOWN, UP, Link, Verdict
from tests.chaos.schedule import Schedule
from tests.chaos.site import NAME, PASSWORD_VARIABLE, Site, device_names
from tests.chaos.story import Child, Story
from tests.chaos.tampering import tampered

RUN_LIMIT_S = 240.0
"""A run of three seconds takes tens of them on a machine that does eight other things."""

FULL_DISK_S = 1.5
"""A disk is freed this long after it was filled, or when the coordinator has stopped."""

MAX_STARTS = 12
_DOCUMENTED = {1, 2, 3, 4}
"""Exit statuses of a run that stops with a reason; docs/cli.md."""


class Director:
    """The run of one schedule at ``site``.

    Args:
        recorded: the updates in the ledger now, assignment id -> digest; asked whenever a coordinator has ended;
            None where nobody can tell.
        plant: name of a bug that the coordinator gets (:mod:`tests.chaos.planted_bugs`); empty for none.
    """

    def __init__(
        self,
        schedule: Schedule,
        site: Site,
        forks: Forks,
        *,
        recorded: Callable[[], dict[str, str] | None],
        plant: str = "",
    ) -> None:
        self.schedule, self.site, self.story = schedule, site, Story()
        self._forks, self._recorded, self._plant = forks, recorded, plant
        self._counts: Counter[str] = Counter()
        self._due = {}
        for fault in schedule.faults:
            self._due.setdefault((fault.at.name, fault.at.nth), []).append(fault)
        self._children: dict[str, Child] = {}
        self._jumps: Counter[str] = Counter()
        self._liars = set(devices_among(schedule.liars))
        brokers = [liar for liar in schedule.liars if liar.kind == "broker"]
        self._liar_between = LyingBroker(NAME, device_names(), brokers[0].variant) if brokers else None
        self._first_word = FirstWord(told_on(schedule.liars) if schedule.mode == "buffered" else ())
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = self._has_damage = False
        self._finished: asyncio.Future[bool]
        self._broker_is_down_until = 0.0
        self._starts = 0
        self._has_begun = False
        self._database: Database | None = None
        self._leader = COORDINATOR
        self._log_from: dict[str, int] = {}
        self._log = (site.folder / "events.log").open("w", encoding="utf-8", buffering=1)
        self._began = time.monotonic()

    def run(self) -> Story:
        """Run to the end, or to the limit; the processes are gone afterwards, but for a database: see :meth:`close`."""
        with self._log:
            asyncio.run(self._run())
        self.story.wall_s = time.monotonic() - self._began
        return self.story

    def close(self) -> None:
        """End what the audit of the run has read."""
        if self._database is not None:
            self._database.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failed)
        self._finished = loop.create_future()
        self._broker = BrokerProcess(self.schedule.broker, self.site.broker, persistent=self.schedule.keeps_queue)
        self._broker.start()
        self._broker_port = int(self._broker.address.url.rpartition(":")[2])
        if self.schedule.on_server:
            self._database = Database()
        store = self.site.on_server(self._database.address) if self._database else ""
        self._commands = Commands(self.schedule, self.site, self._broker.address, plant=self._plant, store=store)
        os.environ[PASSWORD_VARIABLE] = self._broker.address.password
        self._links = {}
        if self.schedule.is_signed:
            self.site.make_signing_key()
        try:
            for party in (COORDINATOR, *device_names()):
                self._links[party] = Link(party, lambda: self._broker_port, self._judge)
                await self._links[party].start()
            self._start_coordinator()
            for device in device_names():
                self._start_device(device)
            for liar in self._liars:
                self._start(liar, "liar", self._commands.liar(liar))
            if self.schedule.on_server:
                self._spawn(self._start_second())
            try:
                await asyncio.wait_for(asyncio.shield(self._finished), RUN_LIMIT_S)
            except TimeoutError:
                self._trouble(f"not over after {RUN_LIMIT_S:.0f} s")
        finally:
            self._is_over = True
            for child in list(self._children.values()):
                self._kill(child, signal.SIGKILL)
            for link in self._links.values():
                link.close()
            for task in self._tasks:
                task.cancel()
            self._broker.stop(kill=True)
        for log in sorted(self.site.logs.iterdir()):
            told = [line for line in log.read_text(errors="replace").splitlines() if "please report" in line]
            self.story.trouble += [f"{log.name}: {line[-200:]}" for line in told[:3]]

    # processes

    def _start(self, party: str, kind: str, values: dict[str, object]) -> None:
        ours, theirs = socket.socketpair()
        password, state = os.environ[PASSWORD_VARIABLE], str(self.site.folder / "state")
        environment = {PASSWORD_VARIABLE: password, "XDG_STATE_HOME": state}
        descriptor = os.open(self.site.log(party), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            pid = self._forks.start(kind, {"environment": environment, **values}, control=theirs, log=descriptor)
        finally:
            os.close(descriptor)
        child = Child(party, pid, ours)
        self._children[party] = child
        self._note(f"started {party} as {pid}")
        # Its clock is wherever the jumps have left it: a restart does not mend the clock of a machine.
        self._jumps[party] = self._jumps[party + "/total"]
        loop = asyncio.get_running_loop()
        watch = os.pidfd_open(pid)

        def ended() -> None:
            loop.remove_reader(watch)
            os.close(watch)
            self._ended(child, self._forks.status(pid))

        loop.add_reader(watch, ended)
        self._spawn(self._listen(child))

    def _start_coordinator(self, party: str = COORDINATOR) -> None:
        self._starts += 1
        self._has_begun = self._has_begun or self.site.has_run()
        self.story.resumes += self._has_begun and party in self._log_from
        self._log_from[party] = self._log_size(party)
        port = self._links[COORDINATOR].port  # who leads connects
        self._start(party, "coordinator", self._commands.coordinator(party, port, is_new=not self._has_begun))

    async def _start_second(self) -> None:
        while not self.site.has_run():
            await asyncio.sleep(0.1)
        self._start_coordinator(SECOND)

    def _start_device(self, device: str) -> None:
        self._start(device, "device", self._commands.device(device, self._links[device].port))

    def _kill(self, child: Child, number: signal.Signals) -> None:
        child.killed = child.killed or number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def _ended(self, child: Child, status: int) -> None:
        child.ended.set()
        if self._is_over:
            return
        self._note(f"{child.party} ended with {status}")
        if self._children.get(child.party) is child:
            del self._children[child.party]
        if child.party in (COORDINATOR, SECOND):
            self._coordinator_ended(child, status)
        elif child.party == FSCK:
            self._repaired(status)
        elif child.party in self._liars:
            self._trouble(f"the harness failed: {child.party} ended with exit status {status}; see its log")
        elif not child.killed:
            # An agent that stops by itself is started again by whatever keeps it running, as a system's service is.
            if status not in _DOCUMENTED:
                self._trouble(f"{child.party} ended with exit status {status}; see its log")
            self._later(0.5, lambda: self._start_device(child.party))

    def _coordinator_ended(self, child: Child, status: int) -> None:
        self._compare_recorded()
        directory = self.site.run_dir if child.party == COORDINATOR else self.site.second_dir
        if status == 0:
            if (directory / "checkpoints" / "final.safetensors").exists():
                self.story.finished_in = directory
                self._over(True)
            return  # one that joined ends with a run that another has ended, without its results
        words = self._words(child.party)
        if not child.killed:
            at = words.rfind("error [")
            self.story.stops.append(f"exit {status}: {words[at:][-600:]}")
            if status not in _DOCUMENTED or "Traceback" in words or "error [" not in words:
                self._trouble(f"the coordinator stopped without a clear reason, exit status {status}: {words[-600:]}")
                self._over(False)
                return
            for disk in self.site.disks.values():  # a device that is full may be what it stopped for
                disk.free()
        if self._starts >= MAX_STARTS:
            self._trouble(f"{self._starts} coordinators were not enough; the last words: {words[-600:]}")
            self._over(False)
            return
        if not child.killed:
            self._later(0.2, self._repair if self._has_damage else lambda: self._start_coordinator(child.party))

    def _over(self, is_finished: bool) -> None:
        if not self._finished.done():
            self._finished.set_result(is_finished)

    def _repair(self) -> None:
        """As the message of a run with a damaged blob says."""
        self._has_damage = False
        arguments = ["fsck", str(self.site.run_dir), "--deep", "--repair"]
        self._start(FSCK, "command", {"arguments": arguments})

    def _repaired(self, status: int) -> None:
        if status not in (0, 1):
            self._trouble(f"fsck --repair ended with exit status {status}; see fsck.log")
        self._start_coordinator()

    def _compare_recorded(self) -> None:
        """An update that was in the ledger when a coordinator ended stays there, with the same digest."""
        now = self._recorded()
        if now is None:
            return
        for identity, digest in self.story.seen_recorded.items():
            if now.get(identity) != digest:
                self.story.lost_between.append(identity)
        self.story.seen_recorded.update(now)

    def _log_size(self, party: str) -> int:
        path = self.site.log(party)
        return path.stat().st_size if path.exists() else 0

    def _words(self, party: str) -> str:
        with self.site.log(party).open("rb") as file:
            file.seek(self._log_from[party])
            return file.read().decode(errors="replace")

    # events

    async def _listen(self, child: Child) -> None:
        reader, writer = await asyncio.open_connection(sock=child.control)
        try:
            while line := await reader.readline():
                name = line.decode().strip()
                if child.party == SECOND or (child.party == COORDINATOR and name != DURABLE_WRITE):
                    self._leader = child.party
                party = COORDINATOR if child.party == SECOND else child.party
                await self._passed(f"{party}@{name}")
                if name == "trained":
                    await self._first_word.wait()
                jump, self._jumps[child.party] = self._jumps[child.party], 0
                writer.write(f"{jump}\n".encode())
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _passed(self, name: str) -> list[Fault]:
        """Count an event and carry out what is due at it, messages' faults apart, which are given back."""
        self._counts[name] += 1
        self._note(f"{name} #{self._counts[name]}")
        due = self._due.pop((name, self._counts[name]), [])
        tampering = []
        for fault in due:
            if ACTIONS[fault.action].of == "message":
                tampering.append(fault)
                self._injected(fault)
            else:
                await self._inject(fault)
        return tampering

    async def _judge(self, party: str, direction: str, packet: Packet) -> Verdict:
        kind, words = kind_of(packet.topic), packet.topic.split("/")
        if party == COORDINATOR and direction == UP and kind == "ack":
            ack = unseal(packet.payload).read(Ack)
            self._first_word.answered(words)
            if ack.accepted:
                self.story.acknowledged[ack.assignment_id] += 1
        verdict = Verdict([packet])
        if self._liar_between is not None:
            verdict = self._liar_between.lies_beside(party, direction, packet)
        if liars := self._liars.intersection(words):
            self.story.heard[liars.pop(), self._starts] += direction == DOWN and kind not in ("get", "put")
            return verdict  # what they say is no event: the same event is the same moment with other liars
        for fault in await self._passed(f"{party}{direction}{kind}"):
            verdict = await tampered(fault, packet)
        return verdict

    # faults

    async def _inject(self, fault: Fault) -> None:
        child = self._children.get(self._leader if fault.target == COORDINATOR else fault.target)
        match fault.action:
            case "kill" | "kill-losing" if fault.target == BROKER:
                if self._broker_is_down_until > time.monotonic():
                    return
                self._broker_is_down_until = time.monotonic() + fault.value
                self._broker.stop(kill=True)
                if fault.action == "kill-losing":
                    (self.site.broker / "mosquitto.db").unlink(missing_ok=True)
                self._later(fault.value, self._broker.start)
            case "kill" | "depose":
                if child is None or child.killed:
                    return
                self._kill(child, signal.SIGKILL)
                is_device = fault.target != COORDINATOR
                start = self._start_device if is_device else self._start_coordinator
                self._spawn(self._start_again(child, fault.value, lambda: start(child.party)))
            case "kill-trainer":
                trainers = [] if child is None else psutil.Process(child.pid).children()
                if not trainers:
                    return
                trainers[0].kill()
            case "restart":
                if self._database is None or self._database.is_away:
                    return
                self._spawn(self._database.restart(fault.value))
            case "pause" | "outlast":
                pid = self._broker_pid() if fault.target == BROKER else child.pid if child else 0
                if not pid:
                    return
                os.kill(pid, signal.SIGSTOP)
                self._later(fault.value, lambda: _continue(pid))
            case "cut":
                self._spawn(self._links[fault.target].cut(fault.value))
            case "partition" | "partition-up" | "partition-down":
                directions = {"partition": UP + DOWN, "partition-up": UP, "partition-down": DOWN}[fault.action]
                self._spawn(self._links[fault.target].hold(directions, fault.value))
            case "fill":
                disk = self.site.disks[fault.target]
                if not disk.is_mounted:
                    return
                disk.fill(int(fault.value))
                self._later(FULL_DISK_S, lambda: disk.free() and None)
            case "clock":
                self._jumps[fault.target] += int(fault.value)
                self._jumps[f"{fault.target}/total"] += int(fault.value)
            case "flip":
                if not flip(self.site.run_dir, BLOBS[int(fault.value)]):
                    return
                self._has_damage = True
            case _:
                raise AssertionError(f"nobody carries out {fault}")
        self._injected(fault)

    async def _start_again(self, child: Child, seconds: float, start: Callable[[], None]) -> None:
        await child.ended.wait()
        await asyncio.sleep(seconds)
        if not self._is_over:
            start()

    def _broker_pid(self) -> int:
        return 0 if self._broker_is_down_until > time.monotonic() else self._broker.pid

    def _injected(self, fault: Fault) -> None:
        self.story.injected.append(fault)
        self._note(f"INJECTED {fault}")

    # around

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            if not self._is_over:
                action()

        self._spawn(wait())

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._is_over:
            self._trouble(f"the harness failed: {type(error).__name__}: {error}")

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if not self._is_over:
            self._trouble(f"the harness failed: {context.get('message')} {context.get('exception')!r}")

    def _trouble(self, what: str) -> None:
        self._note(f"TROUBLE {what}")
        self.story.trouble.append(what)

    def _note(self, what: str) -> None:
        self._log.write(f"{time.monotonic() - self._began:7.3f} {what}\n")


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def events_of(folder: Path) -> list[str]:
    """The injected faults of a run, out of its log."""
    lines = (folder / "events.log").read_text(encoding="utf-8").splitlines()
    return [line.split("INJECTED ", 1)[1] for line in lines if "INJECTED " in line]
