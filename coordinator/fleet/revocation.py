"""A device is out: its certificates and unused claim tokens are revoked, and the broker is told.

What is on the device's own disk is :mod:`coordinator.fleet.provisioning`'s to remove.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordinator.brokers.broker_files import CONFIG_NAME, renew_broker_lists
from coordinator.brokers.cluster_files import node_folders, read_from, renew_cluster_lists, users_in
from coordinator.identity.authority import Authority
from coordinator.identity.folder import EMBEDDED_PID_NAME

_PROGRAM, _EMBEDDED = "mosquitto", "coordinator.brokers.amqtt"
_PROCESSES = Path("/proc")


@dataclass(frozen=True)
class BrokerNews:
    """What the broker knows of a revocation.

    Attributes:
        folder: the broker's files that were written anew; None where they are not known here.
        pid: the process that was told to read them again; None where it is not known here.
        commands: what a person is to run for it; empty when nothing is left to do.
        cluster_commands: in place of these where the broker is a RabbitMQ cluster, while that is not known.
    """

    folder: Path | None
    pid: int | None
    commands: tuple[str, ...]
    cluster_commands: tuple[str, ...] = ()


def revoke_device(identity: Path, device: str, *, reason: str) -> list[str]:
    """Serial numbers of what this call revoked, a browser's as ``key-...``; the revocation list is written anew.

    A device that was never enrolled has none, and loses its claim tokens.

    Raises:
        IdentityRefused: no identity is there.
    """
    with Authority(identity) as authority:
        if not authority.records.certificates("device", device) and device not in _browsers(authority):
            with authority.records.transaction():
                authority.records.drop_tokens(device)
            return []
        return [certificate.serial for certificate in authority.revoke(device, reason=reason)]


def was_revoked(identity: Path, device: str) -> bool:
    """Whether anything of ``device`` was ever revoked, or replaced: a broker's lists may know no later one."""
    with Authority(identity) as authority:
        records = authority.records
        ended = [certificate.revoked_at for certificate in records.certificates("device", device)]
        ended += [browser.revoked_at for browser in records.browsers() if browser.device == device]
        return any(when is not None for when in ended)


def _browsers(authority: Authority) -> set[str]:
    return {browser.device for browser in authority.records.browsers()}


def lets_in(folder: Path, name: str) -> bool:
    """Whether the access file in a broker's folder has topics for the coordinator's or the fleet's ``name``."""
    if node_folders(folder):
        return name in users_in(folder)
    path = folder / "access"
    return path.exists() and f"user {name}\ntopic read " in path.read_text(encoding="utf-8")


def shuts_out(folder: Path, device: str) -> bool:
    """Whether the access file in a broker's folder denies ``device`` everything."""
    if node_folders(folder):
        return device not in users_in(folder)
    path = folder / "access"
    return path.exists() and f"user {device}\ntopic deny #\n" in path.read_text(encoding="utf-8")


def tell_broker(identity: Path, folder: Path | None, *, pid_file: Path | None = None) -> BrokerNews:
    """Write the broker's lists in ``folder`` anew and have it read them, where it runs on this machine.

    A broker that has read them refuses the next connection of whoever is revoked, and takes an open one's topics.

    Args:
        folder: as ``apportion ca mosquitto --out`` or ``apportion ca rabbitmq --out`` wrote it, or None.
        pid_file: of the running broker; its configuration's, or the process that has it open, where None.

    Raises:
        IdentityRefused: ``folder`` is no broker's, or another identity's.
    """
    if folder is None:
        anew = f"apportion ca mosquitto --out DIR --dir {shlex.quote(str(identity))}"
        cluster = f"apportion ca rabbitmq --out DIR --node HOST ... --dir {shlex.quote(str(identity))}"
        copy = "copy each folder to its node's /etc/rabbitmq, then at one node: sudo /etc/rabbitmq/apply"
        return BrokerNews(None, None, (anew, "sudo systemctl reload mosquitto"), (cluster, copy))
    if node_folders(folder):
        return BrokerNews(folder, None, _cluster_commands(renew_cluster_lists(identity, folder)))
    renew_broker_lists(identity, folder)
    if (folder / EMBEDDED_PID_NAME).is_file():
        embedded = _pid_in(folder / EMBEDDED_PID_NAME)
        if embedded is not None and _EMBEDDED in _words(embedded):
            os.kill(embedded, signal.SIGHUP)
            return BrokerNews(folder, embedded, ())
        return BrokerNews(folder, None, ())  # it has ended; the next one reads what was written
    there = _read_from(folder / CONFIG_NAME)
    reload = "sudo systemctl reload mosquitto"
    if there is not None and there.resolve() != folder.resolve():
        target = shlex.quote(str(there))
        copy = f"sudo cp -rT {shlex.quote(str(folder))} {target}"
        return BrokerNews(folder, None, (copy, f"sudo chown -R mosquitto: {target}", reload))
    pid = _running(folder, pid_file)
    if pid is None:
        return BrokerNews(folder, None, (reload,))
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        return BrokerNews(folder, None, (f"sudo kill -HUP {pid}",))
    except ProcessLookupError:
        return BrokerNews(folder, None, (reload,))
    return BrokerNews(folder, pid, ())


def _cluster_commands(folders: tuple[Path, ...]) -> tuple[str, ...]:
    """Copy every node's folder to it, and have one of them apply: users are the whole cluster's."""
    commands = []
    for folder in folders:
        host, there = folder.name.partition("@")[2], shlex.quote(str(read_from(folder)))
        if read_from(folder) != PurePosixPath(folder.resolve()):
            commands.append(f"scp -pr {shlex.quote(str(folder))} {host}:")
            put = f"sudo cp -rT {shlex.quote(folder.name)} {there} && sudo chown -R rabbitmq: {there}"
            commands.append(f"ssh {host} {shlex.quote(f'{put} && rm -r {shlex.quote(folder.name)}')}")
    first = folders[0]
    is_here = read_from(first) == PurePosixPath(first.resolve())
    apply = f"sudo {shlex.quote(str(read_from(first) / 'apply'))}"
    return (*commands, apply if is_here else f"ssh {first.name.partition('@')[2]} {shlex.quote(apply)}")


def _read_from(config: Path) -> Path | None:
    """The folder that the broker reads its lists from, as its configuration says."""
    found = re.search(r"^acl_file (.+)/access$", config.read_text(encoding="utf-8"), re.MULTILINE)
    return Path(found[1]) if found else None


def _running(folder: Path, pid_file: Path | None) -> int | None:
    config = folder / CONFIG_NAME
    named = re.search(r"^pid_file (.+)$", config.read_text(encoding="utf-8"), re.MULTILINE)
    candidates = [pid_file, Path(named[1]) if named else None, folder / f"{_PROGRAM}.pid"]
    for path in candidates:
        pid = None if path is None else _pid_in(path)
        # A file that a crash left behind may name whoever has that number now.
        if pid is not None and _words(pid)[:1] and Path(_words(pid)[0]).name == _PROGRAM:
            return pid
    for process in _PROCESSES.glob("[0-9]*"):
        words = _words(int(process.name))
        is_broker = len(words) >= 3 and Path(words[0]).name == _PROGRAM and words[1] == "-c"
        if is_broker and _same_file(process / "cwd" / words[2], config):
            return int(process.name)
    return None


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # another user's process, or one that has ended
        return False


def _pid_in(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None


def _words(pid: int) -> list[str]:
    """The command line of a process; empty when there is none, or no way to read it."""
    try:
        data = (_PROCESSES / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in data.split(b"\0") if word]
