"""What a broker and its clients need of an identity: files for Mosquitto, a coordinator's and local devices' own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from coordinator.brokers.access import access_rules
from coordinator.brokers.mosquitto import DEVICES, MutualTls, WebSocketFiles, mosquitto_config, service_limits
from coordinator.identity.authority import CRL_DAYS, Authority
from coordinator.identity.browsers import password_lines
from coordinator.identity.folder import EMBEDDED_PID_NAME, PRIVATE, PUBLIC, key_beside, write_file
from coordinator.identity.names import coordinator_name, shard_name
from coordinator.identity.records import IssuedCertificate
from coordinator.identity.web_certificate import WebCertificate
from edge.contracts.errors import IdentityRefused
from edge.identity.device_identity import make_request

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONFIG_NAME = "mosquitto.conf"
LIMITS_NAME = "service-limits"
"""A drop-in of systemd's; not ``.conf``, which Mosquitto's ``include_dir`` would take for its own."""

PASSWORDS_NAME = "passwords"
"""Of the browser devices, hashed; in the folder of a broker that has a listener for them."""


WEB_FILES = ("web.pem", "web.key")
"""Copies of the certificate and key of that listener, where they are not the broker's own."""


@dataclass(frozen=True)
class ClientFiles:
    """PEM files of one client, and the key that it checks orders with."""

    ca: Path
    certificate: Path
    key: Path
    trust: Path


def browser_passwords(identity: Path, folder: Path) -> Path:
    """The password file of the browser devices, written anew in ``folder``."""
    with Authority(identity) as authority:
        return _write_passwords(authority, folder)


def loopback_broker(identity: Path, folder: Path) -> MutualTls:
    """What a Mosquitto on this machine needs, its access file in ``folder``; a server's certificate made if needed."""
    with Authority(identity) as authority:
        server = next((c for c in servers(authority) if LOOPBACK[1] in c.hosts), None)
        path = authority.folder.server(server.name) if server else authority.issue_server(LOOPBACK).path
        renew_list(authority)
        return MutualTls(
            ca=authority.folder.ca,
            crl=authority.folder.crl,
            certificate=path,
            key=key_beside(path),
            access=_write_access(authority, folder),
        )


def server_files(identity: Path, host: str) -> tuple[Path, Path]:
    """Certificate and key of the server that is reached as ``host``; made where that is this machine itself.

    Raises:
        IdentityRefused: there are none.
    """
    with Authority(identity) as authority:
        server = next((c for c in servers(authority) if host in c.hosts), None)
        if server is None and host not in LOOPBACK:
            raise IdentityRefused(
                f"no valid certificate and key of a server '{host}'",
                hint=f"apportion ca issue-server --name {host} --dir {identity}",
            )
        path = authority.folder.server(server.name) if server else authority.issue_server(LOOPBACK).path
        return path, key_beside(path)


def write_broker_folder(
    identity: Path,
    out: Path,
    *,
    server: str = "",
    port: int = 8883,
    bind: str = "",
    at: Path | None = None,
    web_socket_port: int = 0,
    web_certificate: WebCertificate | None = None,
    devices: int = DEVICES,
) -> Path:
    """All that a Mosquitto elsewhere needs, in ``out``: its configuration, which names its files below ``at``.

    With ``web_socket_port`` it listens there for browser devices too, at the same address with the same certificate,
    or with ``web_certificate``.

    It is made for as many as ``devices``. May be repeated after every change of the identity; the configuration's path
    comes back.

    Raises:
        IdentityRefused: no server ``server``, or none or several where it is not named.
    """
    with Authority(identity) as authority:
        known = {c.name: c for c in servers(authority)}
        if len(known) != 1 and not server:
            raise IdentityRefused(
                f"the identity has {len(known)} servers ({', '.join(known) or 'none'}); one is wanted",
                hint="apportion ca issue-server --name HOST makes one; --server HOST chooses",
            )
        chosen = known.get(server) if server else next(iter(known.values()))
        if chosen is None:
            raise IdentityRefused(
                f"no valid certificate and key of a server '{server}'; known: {', '.join(known) or 'none'}",
                hint=f"apportion ca issue-server --name {server}",
            )
        renew_list(authority)
        path = authority.folder.server(chosen.name)
        write_file(out / "ca.pem", authority.folder.ca.read_bytes(), PUBLIC)
        write_file(out / "crl.pem", authority.folder.crl.read_bytes(), PUBLIC)
        write_file(out / "server.pem", path.read_bytes(), PUBLIC)
        write_file(out / "server.key", key_beside(path).read_bytes(), PRIVATE)
        _write_access(authority, out)
        if web_socket_port:
            _write_passwords(authority, out)
        else:
            (out / PASSWORDS_NAME).unlink(missing_ok=True)
    there = at if at is not None else out.resolve()
    files = MutualTls(
        ca=there / "ca.pem",
        crl=there / "crl.pem",
        certificate=there / "server.pem",
        key=there / "server.key",
        access=there / "access",
    )
    # The system's own configuration says where messages are kept; ours would be a second opinion.
    shown = (files.certificate, files.key)
    if web_certificate is not None:
        write_file(out / WEB_FILES[0], web_certificate.certificate.read_bytes(), PUBLIC)
        write_file(out / WEB_FILES[1], web_certificate.key.read_bytes(), PRIVATE)
        shown = (there / WEB_FILES[0], there / WEB_FILES[1])
    else:
        for name in WEB_FILES:
            (out / name).unlink(missing_ok=True)
    web = WebSocketFiles(web_socket_port, bind, there / PASSWORDS_NAME, *shown)
    config = mosquitto_config(
        there, port, None, None, bind=bind, mutual=files, web_socket=web if web_socket_port else None, devices=devices
    )
    write_file(out / LIMITS_NAME, service_limits(devices), PUBLIC)
    write_file(out / CONFIG_NAME, config, PUBLIC)
    return out / CONFIG_NAME


def renew_broker_lists(identity: Path, out: Path) -> None:
    """Write anew what claims and revocations change in a broker's folder: access file, revocation list, passwords.

    Raises:
        IdentityRefused: ``out`` is no broker's folder, or one of another identity.
    """
    with Authority(identity) as authority:
        own, root = out / CONFIG_NAME, out / "ca.pem"
        if (out / EMBEDDED_PID_NAME).is_file():
            _write_passwords(authority, out)
            return
        if not own.is_file():
            raise IdentityRefused(
                f"{out} is no broker's folder: it has no {CONFIG_NAME}", hint=f"apportion ca mosquitto --out {out}"
            )
        if root.exists() and root.read_bytes() != authority.folder.ca.read_bytes():
            raise IdentityRefused(f"{out} is the broker's folder of another identity than {identity}")
        renew_list(authority)
        owner = own.stat()
        written = [_write_access(authority, out)]
        if (out / PASSWORDS_NAME).exists():
            written.append(_write_passwords(authority, out))
        if (out / "crl.pem").exists():  # the broker of a run reads the identity's own
            write_file(out / "crl.pem", authority.folder.crl.read_bytes(), PUBLIC)
            written.append(out / "crl.pem")
        for path in written if os.geteuid() == 0 else ():
            os.chown(path, owner.st_uid, owner.st_gid)  # the broker has a user of its own, who must read them


def coordinator_files(identity: Path, federation: str, *, issue: bool, shard: int | None = None) -> ClientFiles:
    """The files of the coordinator of ``federation``, or of one of its shards; made where missing if ``issue``.

    Raises:
        IdentityRefused: they are missing and the broker, which is not ours, would not know them.
    """
    with Authority(identity) as authority:
        name = coordinator_name(federation) if shard is None else shard_name(federation, shard)
        path = authority.folder.coordinator(name.removeprefix("@"))
        known = authority.records.certificates("coordinator", name)
        if issue:
            authority.issue_coordinator(federation, shard=shard)
        elif not any(_is_usable(authority, c, path) for c in known):
            what, flag = ("", "") if shard is None else (f" for shard {shard}", " --shards N")
            again = f"apportion ca issue-coordinator {federation}{flag} --dir {identity}"
            raise IdentityRefused(
                f"{identity} has no valid certificate of the coordinator of '{federation}'{what}",
                hint=f"{again}; then apportion ca mosquitto again",
            )
        return ClientFiles(authority.folder.ca, path, key_beside(path), authority.folder.signing_public)


def fleet_files(identity: Path, federation: str) -> ClientFiles:
    """The files under which ``apportion device`` connects to the broker of ``federation``; made once, then kept.

    Raises:
        IdentityRefused: no identity is there, or an unusable name.
    """
    with Authority(identity) as authority:
        path = authority.issue_fleet(federation).path
        return ClientFiles(authority.folder.ca, path, key_beside(path), authority.folder.signing_public)


def local_device_files(identity: Path, device: str) -> ClientFiles:
    """The files of an agent started on this machine, its key in the identity's folder: made once, then kept.

    Raises:
        IdentityRefused: a device elsewhere has that id.
    """
    with Authority(identity) as authority:
        own = make_request(authority.folder.root / "local" / device, device)
        issued = authority.sign_device(own.request.read_bytes(), device)
        return ClientFiles(authority.folder.ca, issued.path, own.key, authority.folder.signing_public)


def servers(authority: Authority) -> list[IssuedCertificate]:
    """The servers' certificates that stand and whose keys are there."""
    found = authority.records.certificates("server")
    return [c for c in found if _is_usable(authority, c, authority.folder.server(c.name))]


def _is_usable(authority: Authority, certificate: IssuedCertificate, path: Path) -> bool:
    is_there = path.exists() and key_beside(path).exists() and path.read_bytes() == certificate.pem
    return is_there and certificate.status(authority.now()) == "valid"


def renew_list(authority: Authority) -> None:
    """A broker lets nobody in with a list that has run out."""
    if authority.records.revocation_list()[2] - authority.now() < CRL_DAYS / 2 * 86_400:
        authority.write_crl()


def _write_access(authority: Authority, folder: Path) -> Path:
    path = folder / "access"
    rules = access_rules(authority.records.certificates(), authority.now(), authority.records.browsers())
    write_file(path, rules, PRIVATE)
    return path


def _write_passwords(authority: Authority, folder: Path) -> Path:
    path = folder / PASSWORDS_NAME
    write_file(path, password_lines(authority), PRIVATE)
    return path
