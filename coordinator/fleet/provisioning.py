"""Makes a device of a host: probe, fit, folder, wheels, environment, key, certificate, trust, service, start.

Every step may be repeated and changes only what is missing; a run that was cut off goes on when it is started again.
When a first run fails before the agent was started, the host is left as it was. The order of the steps is here, their
shell text in :mod:`coordinator.fleet.commands` and :mod:`coordinator.fleet.service`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.fleet import commands
from coordinator.fleet.facts import HostFacts, probe_host, require_fit
from coordinator.fleet.host import CommandFailed, Host, HostLost, HostUnfit
from coordinator.fleet.installation import Installation
from coordinator.fleet.service import install_service, remove_all, service_kind, show_log, start_service
from coordinator.fleet.steps import NO_SPACE, Steps, advice, run_text
from coordinator.fleet.wheelhouse import Wheelhouse
from coordinator.identity.authority import Authority, Issued
from edge.contracts.errors import ApportionError
from profiles.device import DeviceProfile

INSTALL_S = 3600.0
"""An installation takes 10 s on a PC, minutes on a slow card, and longest in an emulator."""

RUN_S = 600.0
REMOVED = "removed "
RETRIED = frozenset({3, 4})
"""Exit statuses of an agent that finds no broker: its service starts it again until it does."""


@dataclass(frozen=True, kw_only=True)
class Provisioned:
    """A host that is a device now.

    Attributes:
        facts: of the host, before.
        changed: the steps that changed something; () when everything was as wanted.
        installed_bytes: of the environment on its disk.
        sent_bytes: of the wheels that were copied.
        seconds: step -> how long it took.
        serial: of the device's certificate.
    """

    facts: HostFacts
    changed: tuple[str, ...]
    installed_bytes: int
    sent_bytes: int
    seconds: Mapping[str, float]
    serial: str


async def provision(
    host: Host,
    installation: Installation,
    *,
    identity: Path,
    wheels: Callable[[HostFacts], Wheelhouse],
    tell: Callable[[str], None],
    replace: bool = False,
) -> Provisioned:
    """Make ``host`` the device, or bring what is there up to ``installation``.

    Args:
        identity: folder of the authority (``apportion ca init``) that certifies the device.
        wheels: gives the wheels for the host; called in a thread.
        tell: gets a line for people at each step.
        replace: a certificate that another key has under the device's id is revoked for this one.

    Raises:
        HostUnfit: it cannot be made of this host, which was left as it was.
        CommandFailed: a step failed; a host that was new is as it was before.
        HostLost: the connection ended; what was done is kept for the next run.
        IdentityRefused: no authority, or another key has the certificate of that id.
        WheelsUnavailable: the packages cannot be had here.
    """
    steps = Steps(host, tell)
    with Authority(identity) as authority:
        with steps.step("probe", f"what {host.name} is"):
            facts = await probe_host(host, installation.folder)
        with steps.step("fit", "whether a device can be made of it"):
            _require_fit(host, facts, installation, 0)
        with steps.step("wheelhouse", f"packages for {facts.machine}, Python {_python(facts)}, made here"):
            wheelhouse = await asyncio.to_thread(wheels, facts)
            if facts.installed != wheelhouse.release:
                _require_fit(host, facts, installation, wheelhouse.needed_bytes)
        attempt = _Attempt(steps, installation, facts, wheelhouse, authority)
        try:
            await attempt.install(replace=replace)
        except HostLost:
            raise
        except (ApportionError, OSError):
            if not facts.has_folder and not attempt.is_started:
                await attempt.undo()
            raise
        return await attempt.finish()


class _Attempt:
    """One run of the steps that change something."""

    def __init__(
        self,
        steps: Steps,
        installation: Installation,
        facts: HostFacts,
        wheelhouse: Wheelhouse,
        authority: Authority,
    ) -> None:
        self._steps, self._installation, self._facts = steps, installation, facts
        self._wheelhouse, self._authority = wheelhouse, authority
        self._issued: Issued | None = None
        self._sent_bytes = 0
        self._kind = service_kind(facts)
        self.is_started = False

    async def install(self, *, replace: bool) -> None:
        """From the folder to an agent that runs."""
        steps, installation = self._steps, self._installation
        with steps.step("folder", f"{installation.folder} on {steps.host.name}"):
            await steps.run(commands.make_folder(installation))
        if self._facts.installed != self._wheelhouse.release:
            with steps.step("wheels", f"{len(self._wheelhouse.digests)} packages"):
                await self._send_wheels()
            with steps.step("environment", f"{self._wheelhouse.unpacked_bytes / 2**20:.0f} MB of Python packages"):
                await self._make_environment()
        with steps.step("key", "made there, and never leaves it"):
            await steps.run(commands.make_request(installation), timeout_s=RUN_S)
            request = "\n".join(await steps.run(commands.show_request(installation)))
        with steps.step("certificate", f"of {installation.device}, by the authority here"):
            self._issued = self._authority.sign_device(request.encode(), installation.device, replace=replace)
            if self._issued.is_new:
                steps.mark()
        with steps.step("trust", "certificates, and the key that signs orders"):
            await steps.run("".join(f"(\n{text})\n" for text in self._trust(self._issued)))
        with steps.step("service", {"systemd": "a systemd user unit"}.get(self._kind, "run-agent: no systemd there")):
            await steps.run(install_service(installation, self._kind))
        with steps.step("start", "the agent"):
            await self._start()

    async def finish(self) -> Provisioned:
        """Clears what is no longer used, and the figures."""
        installation, steps = self._installation, self._steps
        clear = commands.drop_old_environments(installation) + commands.measure_folder(installation)
        (size,) = await steps.run(clear, timeout_s=RUN_S)
        assert self._issued is not None
        return Provisioned(
            facts=self._facts,
            changed=tuple(steps.changed),
            installed_bytes=int(size) * 1024,
            sent_bytes=self._sent_bytes,
            seconds=dict(steps.seconds),
            serial=self._issued.certificate.serial,
        )

    async def undo(self) -> None:
        """Takes back what this run has made, on the host and in the authority's record."""
        tell = self._steps.tell
        try:
            removed = await remove(self._steps.host, self._installation)
            tell(f"taken back on the host: {', '.join(removed) or 'nothing was there yet'}")
        except ApportionError as error:
            tell(f"not everything could be taken back: {error}")
        if self._issued is not None and self._issued.is_new:
            # Its key is gone with the folder: it would only stand in the way of the next one.
            serial = self._issued.certificate.serial
            self._authority.records.revoke(serial, self._authority.now(), "provisioning failed")
            self._authority.write_crl()

    async def _send_wheels(self) -> None:
        steps, installation, digests = self._steps, self._installation, self._wheelhouse.digests
        check = commands.check_wheels(installation, digests)
        missing = _missing(await steps.run(check, timeout_s=RUN_S))
        for number, name in enumerate(sorted(missing, key=lambda n: (self._size(n), n)), 1):
            steps.tell(f"  {number} of {len(missing)}: {name}, {self._size(name) / 2**20:.1f} MB")
            try:
                await steps.host.put(self._wheelhouse.folder / name, f"{installation.folder}/wheels/{name}")
            except CommandFailed as error:
                if NO_SPACE in str(error):
                    free = self._wheelhouse.needed_bytes / 2**20
                    raise CommandFailed(
                        f"{error}; the packages need {free:.0f} MB in all", hint=advice(NO_SPACE)
                    ) from error
                raise
            self._sent_bytes += self._size(name)
            steps.mark()
        if missing and (damaged := _missing(await steps.run(check, timeout_s=RUN_S))):
            raise CommandFailed(
                f"{steps.host.name}: {', '.join(sorted(damaged))} did not arrive whole",
                hint="run it again; if it is so every time, its disk or its memory is bad",
            )

    def _size(self, name: str) -> int:
        return (self._wheelhouse.folder / name).stat().st_size

    async def _make_environment(self) -> None:
        assert self._facts.python is not None
        text = commands.make_environment(self._installation, tuple(self._wheelhouse.digests), self._wheelhouse.release)
        await self._steps.run(commands.use_python(self._facts.python.path) + text, timeout_s=INSTALL_S)

    def _trust(self, issued: Issued) -> list[str]:
        folder = self._authority.folder
        texts = {
            "identity/ca.pem": folder.ca.read_text(),
            "identity/signing.pub": folder.signing_public.read_text(),
            "identity/device.pem": issued.certificate.pem.decode(),
        }
        return [commands.write_text(self._installation, path, text) for path, text in texts.items()]

    async def _start(self) -> None:
        steps = self._steps
        restart = bool(steps.changed)
        lines = await steps.run(start_service(self._installation, self._kind, restart=restart), timeout_s=RUN_S)
        self.is_started = True
        if "alive" in lines:
            return
        status = next((line.removeprefix("ended").strip() for line in lines if line.startswith("ended")), "")
        told = (await agent_log(steps.host, self._installation, 8)).strip() or "its log is empty"
        if status.isdecimal() and int(status) in RETRIED:
            steps.tell(f"the agent finds no broker yet and is started again until it does: {told.splitlines()[-1]}")
            return
        raise CommandFailed(
            f"{steps.host.name}: the agent ended with status {status or 'unknown'} as soon as it was started:\n{told}",
            hint="correct what it says and run the same command again; its service keeps trying meanwhile",
        )


async def remove(host: Host, installation: Installation) -> tuple[str, ...]:
    """Stop the agent and remove all that provisioning made; the data stays. What was removed, () if nothing was there.

    Raises:
        CommandFailed: something could not be removed.
        HostLost: the connection ended; the same call goes on from there.
    """
    lines = (await run_text(host, remove_all(installation), "remove", timeout_s=RUN_S)).splitlines()
    return tuple(line.removeprefix(REMOVED) for line in lines if line.startswith(REMOVED))


async def agent_log(host: Host, installation: Installation, lines: int) -> str:
    """The last ``lines`` of the agent's log."""
    return await run_text(host, show_log(installation, lines), "log")


async def measured_profile(host: Host, installation: Installation) -> DeviceProfile:
    """The device's profile as its own installation probes it.

    Raises:
        CommandFailed: there is no installation, or what it says is not a profile.
        HostLost: the connection ended.
    """
    told = await run_text(host, commands.probe_profile(installation), "profile", timeout_s=RUN_S)
    try:
        return msgspec.convert(json.loads(told.splitlines()[-1])["profile"], DeviceProfile)
    except (IndexError, KeyError, ValueError, msgspec.ValidationError) as error:
        raise CommandFailed(
            f"{host.name}: apportion profile --json gave no profile ({error}): {told[-200:]!r}",
            hint="bring the installation up to date: apportion device upgrade",
        ) from error


def _require_fit(host: Host, facts: HostFacts, installation: Installation, needed_bytes: int) -> None:
    try:
        require_fit(facts, installation, needed_bytes)
    except HostUnfit as error:
        raise HostUnfit(
            f"{host.name} cannot become {installation.device} and was left as it was: {error}", hint=error.hint
        ) from error


def _missing(lines: list[str]) -> set[str]:
    return {line.removeprefix("missing ") for line in lines if line.startswith("missing ")}


def _python(facts: HostFacts) -> str:
    return "?" if facts.python is None else ".".join(map(str, facts.python.version))
