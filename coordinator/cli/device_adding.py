"""From a machine to a device that has said hello: probe, wheels, install, enrol, start, greet, profile, book.

The steps on the machine are :mod:`coordinator.fleet.provisioning`'s. Here is what goes around them, for one machine or
for several at a time, for the first time, again, and for an upgrade, which is the same thing once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.cli.device_progress import Progress
from coordinator.cli.device_reaching import Login, Reach, name_of, open_host
from coordinator.cli.device_requests import Requests, kept_arguments
from coordinator.fleet.book import FleetBook, FleetSettings
from coordinator.fleet.host import Host, HostLost
from coordinator.fleet.revocation import shuts_out, tell_broker, was_revoked
from edge.contracts.errors import ApportionError, DeadlineExpired, IdentityRefused
from edge.contracts.messages import Hello
from profiles.device import DeviceProfile

if TYPE_CHECKING:
    from coordinator.fleet.facts import HostFacts
    from coordinator.fleet.greeting import Greeter
    from coordinator.fleet.installation import Installation
    from coordinator.fleet.wheelhouse import Wheelhouse

AT_A_TIME = 12
"""Machines worked on together; every one has a connection and copies through the same link."""

LOG_LINES = 12
"""Of an agent that said no hello, in the error."""


@dataclass(kw_only=True)
class Outcome:
    """How it ended for one machine.

    Attributes:
        changed: what was done on the machine, in order; empty when everything was as it should be.
        hello: None when it was not waited for.
    """

    target: str
    device: str = ""
    changed: tuple[str, ...] = ()
    installed_bytes: int = 0
    machine: str = ""
    seconds: float = 0.0
    hello: Hello | None = None
    profile: DeviceProfile | None = None
    profile_path: str = ""
    notes: list[str] = field(default_factory=list)
    error: ApportionError | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        told: dict[str, Any] = {
            "device": self.device or None,
            "target": self.target,
            "ok": self.error is None,
            "changed": list(self.changed),
            "seconds": round(self.seconds, 2),
            "installed_bytes": self.installed_bytes,
            "machine": self.machine or None,
            "examples": None if self.hello is None else self.hello.num_examples,
            "data_error": None if self.hello is None else self.hello.data_error or None,
            "profile": self.profile_path or None,
            "notes": self.notes,
        }
        if self.error is not None:
            told["error"] = {"code": self.error.code, "message": str(self.error), "hint": self.error.hint}
        return told


@dataclass
class Adding:
    """One command's work: every machine in turn or several together.

    Attributes:
        greeter: open; None when nobody waits for a hello.
        wait_s: for each device's hello.
        replace: a certificate that another key has under a device's id gives way.
        shown_width, is_alone: of the names in front of the lines, and whether there is one device only.
    """

    book: FleetBook
    settings: FleetSettings
    requests: Requests
    greeter: Greeter | None
    wait_s: float
    replace: bool = False
    shown_width: int = 0
    is_alone: bool = True
    _taken: dict[str, str] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)

    async def all(self, machines: Sequence[tuple[Reach, str]]) -> list[Outcome]:
        """An outcome for each of ``machines`` and the device ids that they are to have ("": their own names)."""
        turn = asyncio.Semaphore(AT_A_TIME)

        async def one(reach: Reach, device: str) -> Outcome:
            async with turn:
                return await self._one(reach, device)

        try:
            return list(await asyncio.gather(*(one(reach, device) for reach, device in machines)))
        finally:
            self._is_over.set()  # after Ctrl-C nobody is waited for

    async def _one(self, reach: Reach, device: str) -> Outcome:
        name = "" if self.is_alone else device or reach.shown
        progress = Progress(name, width=self.shown_width, is_alone=self.is_alone)
        outcome = Outcome(target=reach.shown, device=device)
        try:
            progress(f"connect: {reach.shown}")
            async with open_host(reach) as host:
                if reach.way == "adb" and not reach.target:
                    reach = dataclasses.replace(reach, target=host.name.removeprefix("adb:"))
                    outcome.target = reach.shown
                await self._add(host, reach, outcome, progress)
        except ApportionError as error:
            outcome.error = error
            progress.end()
            progress.note(f"error [{error.code}]: {error}")
            if error.hint:
                progress.note(f"hint: {error.hint}")
        outcome.seconds, outcome.notes = progress.seconds, progress.notes
        return outcome

    async def _add(self, host: Host, reach: Reach, outcome: Outcome, progress: Progress) -> None:
        device = outcome.device or await name_of(host)
        await self._require_own(host, device, reach)
        outcome.device = device
        progress.rename(device)
        with self.book.working_on(device):
            entry = self.book.find(device)
            installation = self.requests.installation(device, self.settings, entry)
            await self._provision(host, reach, installation, outcome, progress)
            self._let_in(device, progress, is_new="certificate" in outcome.changed)
            if self.greeter is not None:
                outcome.hello = await self._hello(host, installation, progress)
                self.book.change(device, seen_at=time.time())
            await self._profile(host, installation, outcome, progress)

    async def _require_own(self, host: Host, device: str, reach: Reach) -> None:
        """Check that the id is that machine's or nobody's. Boards from one image have one name; addresses change."""
        from coordinator.fleet.facts import probe_host

        entry = self.book.find(device)
        other = self._taken.get(device, reach.shown)
        if other == reach.shown and entry is not None and entry.way != "claim" and not entry.revoked_at:
            before = Reach.of_entry(entry, Login()).shown
            folder = str(entry.installation["folder"])
            if before != reach.shown and (await probe_host(host, folder)).owner != device:
                other = before
        if other != reach.shown:
            raise IdentityRefused(
                f"device id '{device}' is that of {other}; {reach.shown} needs one of its own",
                hint=f"--device {device}-2; if that machine is gone: apportion device revoke {device}",
            )
        self._taken[device] = reach.shown

    async def _provision(
        self, host: Host, reach: Reach, installation: Installation, outcome: Outcome, progress: Progress
    ) -> None:
        from coordinator.fleet.facts import probe_host
        from coordinator.fleet.provisioning import provision

        device = installation.device
        before = self.book.find(device)
        releases: list[str] = []

        def wheels(facts: HostFacts) -> Wheelhouse:
            """Called when the host is known to be fit, before anything is changed there."""
            outcome.machine = facts.machine
            self._enter(device, reach, installation, facts)
            built = self._wheels(facts, installation.runtime)
            releases.append(built.release)
            return built

        try:
            done = await provision(
                host,
                installation,
                identity=Path(self.settings.identity),
                wheels=wheels,
                tell=progress,
                replace=self.replace,
            )
        except HostLost:
            raise
        except ApportionError:
            # What was begun is in the book as long as there is something of it on the host.
            if before is None and not (await probe_host(host, installation.folder)).has_folder:
                self.book.forget(device)
            raise
        outcome.changed, outcome.installed_bytes = done.changed, done.installed_bytes
        standing = self.book.get(device)
        self.book.change(
            device,
            enrolled_at=standing.enrolled_at or time.time(),
            installed_bytes=done.installed_bytes,
            release=releases[-1],
            steps=tuple(done.seconds),
        )

    def _enter(self, device: str, reach: Reach, installation: Installation, facts: HostFacts) -> None:
        """The device is in the book from here on, whatever becomes of it."""
        before = self.book.find(device)
        stands = before is not None and not before.revoked_at
        self.book.change(
            device,
            way=reach.way,
            target=reach.target,
            port=reach.port,
            key=reach.login.key or (before.key if before else ""),
            installation=kept_arguments(installation),
            facts=msgspec.to_builtins(facts),
            added_at=before.added_at if before is not None and stands else time.time(),
            enrolled_at=before.enrolled_at if before is not None and stands else 0.0,
            revoked_at=0.0,
            left="",
        )

    def _let_in(self, device: str, progress: Progress, *, is_new: bool) -> None:
        """The broker's lists anew where they still shut the device out, or let in what this certificate replaced."""
        identity, folder, pid_file = (
            Path(path) if path else None
            for path in (self.settings.identity, self.settings.broker_folder, self.settings.broker_pid_file)
        )
        assert identity is not None
        if not was_revoked(identity, device) or not (is_new or (folder and shuts_out(folder, device))):
            return
        progress.end()
        news = tell_broker(identity, folder, pid_file=pid_file)
        if news.commands:
            progress.note(f"'{device}' was revoked before; the broker shuts it out until it has read its lists:")
            progress.note("\n".join(f"  {command}" for command in news.commands))

    def _wheels(self, facts: HostFacts, runtime: str) -> Wheelhouse:
        from coordinator.fleet.wheelhouse import build_wheelhouse

        with self.book.alone("wheels"):
            return build_wheelhouse(self.book.folder / "wheels", facts, runtime)

    async def _hello(self, host: Host, installation: Installation, progress: Progress) -> Hello:
        assert self.greeter is not None
        progress(f"hello: waited for over {self.settings.broker}")
        try:
            hello = await asyncio.to_thread(
                self.greeter.wait, installation.device, self.wait_s, is_over=self._is_over.is_set
            )
        except DeadlineExpired as error:
            raise DeadlineExpired(
                f"{error}\n{await self._log(host, installation)}",
                hint=f"it is installed and goes on trying; apportion device logs {installation.device}",
            ) from error
        examples = f"{hello.num_examples} examples, {', '.join(sorted(hello.runtimes)) or 'no runtime'}"
        progress.end()
        progress.note(f"it is there: {examples}")
        if hello.data_error:
            progress.note(f"its data cannot be used yet: {hello.data_error}")
        return hello

    async def _log(self, host: Host, installation: Installation) -> str:
        from coordinator.fleet.provisioning import agent_log

        with contextlib.suppress(ApportionError):
            lines = (await agent_log(host, installation, LOG_LINES)).strip()
            return f"the last lines of its agent's log:\n{lines}" if lines else "its agent's log is empty"
        return "its agent's log cannot be read"

    async def _profile(self, host: Host, installation: Installation, outcome: Outcome, progress: Progress) -> None:
        """As the agent has just said, which knows more; else by a probe beside it."""
        from coordinator.fleet.provisioning import measured_profile

        if outcome.hello is not None:
            found, method = outcome.hello.profile, "hello"
        else:
            progress("profile: its memory, processors, heat, storage")
            found, method = await measured_profile(host, installation), "probe"
            progress.end()
        outcome.profile, outcome.profile_path = found, self.book.keep_profile(found, method=method)
