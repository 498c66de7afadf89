"""The folders of a RabbitMQ cluster's nodes, written from an identity; may be repeated after every change of it."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from cryptography import x509

from coordinator.brokers.access import Names, federation_of, names_of
from coordinator.brokers.broker_files import renew_list, servers
from coordinator.brokers.mosquitto import DEVICES
from coordinator.brokers.nodes import Node
from coordinator.brokers.rabbitmq import (
    ADVANCED,
    APPLY,
    BETWEEN,
    CONFIG,
    COOKIE,
    DEFINITIONS,
    ENVIRONMENT,
    LISTS,
    PLUGINS,
    REVOKED,
    advanced_config,
    apply_script,
    between_nodes,
    enabled_plugins,
    environment,
    node_config,
)
from coordinator.identity.authority import Authority
from coordinator.identity.folder import PRIVATE, PUBLIC, key_beside, write_file
from edge.contracts.errors import IdentityRefused
from edge.contracts.topics import PREFIX


@dataclass(frozen=True)
class ClusterFolders:
    """What was written.

    Attributes:
        url: of the whole cluster, for agents and run files.
        folders: one for each node, named ``<name>@<host>``.
    """

    url: str
    folders: tuple[Path, ...]
    names: Names


def write_cluster_folders(
    identity: Path,
    out: Path,
    nodes: Sequence[Node],
    *,
    at: PurePosixPath | None = None,
    bind: str = "",
    cluster_bind: str = "",
    devices: int = DEVICES,
) -> ClusterFolders:
    """A folder below ``out`` for each of ``nodes`` with everything it needs; the cookie is kept from an earlier time.

    Args:
        at: where each node finds its folder; where it is written, if None.
        bind, cluster_bind: address at which the nodes listen for clients and for each other; empty for all.
        devices: how many connect at most.

    Raises:
        IdentityRefused: a host without a server's certificate.
    """
    with Authority(identity) as authority:
        found = servers(authority)
        chosen = {node: next((c for c in found if node.host in c.hosts), None) for node in nodes}
        missing = [node.host for node, certificate in chosen.items() if certificate is None]
        if missing:
            raise IdentityRefused(
                f"no valid certificate and key of a server '{missing[0]}'"
                + (f", nor of {', '.join(missing[1:])}" if missing[1:] else ""),
                hint=f"apportion ca issue-server --name {missing[0]} --dir {identity}",
            )
        renew_list(authority)
        names = names_of(authority.records.certificates(), authority.now())
        users = msgspec.json.format(msgspec.json.encode(definitions(names)), indent=1)
        # A list is checked with its issuer's certificate, which is not the root's where that is kept elsewhere.
        authorities = b"".join(path.read_bytes() for path in (authority.folder.ca, *authority.folder.issuers))
        lists = _lists(authority.folder.crl.read_bytes())
        cookie = _cookie(out, nodes)
        for node, certificate in chosen.items():
            assert certificate is not None
            folder = out / str(node)
            there = PurePosixPath(folder.resolve()) if at is None else at
            server = authority.folder.server(certificate.name)
            for name, data, mode in (
                (
                    CONFIG,
                    node_config(node, nodes, there, bind=bind, cluster_bind=cluster_bind, devices=devices).encode(),
                    PUBLIC,
                ),
                (ADVANCED, advanced_config(there).encode(), PUBLIC),
                (ENVIRONMENT, environment(node, there).encode(), PUBLIC),
                (BETWEEN, between_nodes(there).encode(), PUBLIC),
                (PLUGINS, enabled_plugins().encode(), PUBLIC),
                (DEFINITIONS, users, PRIVATE),
                (REVOKED, "".join(f"{name}\n" for name in names.denied).encode(), PUBLIC),
                (APPLY, apply_script().encode(), 0o755),
                (COOKIE, cookie, PRIVATE),
                ("ca.pem", authorities, PUBLIC),
                ("server.pem", server.read_bytes(), PUBLIC),
                ("server.key", key_beside(server).read_bytes(), PRIVATE),
                *((f"{LISTS}/{name}", data, PUBLIC) for name, data in lists.items()),
            ):
                write_file(folder / name, data, mode)
            (folder / LISTS).chmod(0o755)
    places = ",".join(f"{node.host}:{node.port}" for node in nodes)
    return ClusterFolders(f"mqtts://{places}", tuple(out / str(node) for node in nodes), names)


def node_folders(out: Path) -> tuple[Path, ...]:
    """The folders of a cluster's nodes below ``out``, by name; none where that is no cluster's."""
    return tuple(sorted(path.parent for path in out.glob(f"*@*/{CONFIG}") if (path.parent / REVOKED).is_file()))


def read_from(folder: Path) -> PurePosixPath:
    """Where the node of ``folder`` finds it, as its configuration says."""
    found = re.search(
        rf"^definitions\.local\.path = (.+)/{re.escape(DEFINITIONS)}$", (folder / CONFIG).read_text(), re.M
    )
    return PurePosixPath(found[1]) if found else PurePosixPath(folder.resolve())


def users_in(out: Path) -> frozenset[str]:
    """The names that the folders below ``out`` have as users."""
    found = json.loads((node_folders(out)[0] / DEFINITIONS).read_bytes())
    return frozenset(str(user["name"]) for user in found["users"])


def renew_cluster_lists(identity: Path, out: Path) -> tuple[Path, ...]:
    """Write anew what claims and revocations change in the folders of a cluster: users, revocation lists, who is out.

    The folders come back.

    Raises:
        IdentityRefused: ``out`` is no cluster's, or one of another identity.
    """
    folders = node_folders(out)
    if not folders:
        raise IdentityRefused(f"{out} holds no folder of a cluster's node", hint=f"apportion ca rabbitmq --out {out}")
    with Authority(identity) as authority:
        root = authority.folder.ca.read_bytes()
        if any(not (folder / "ca.pem").read_bytes().startswith(root) for folder in folders):
            raise IdentityRefused(f"{out} is the cluster of another identity than {identity}")
        renew_list(authority)
        names = names_of(authority.records.certificates(), authority.now())
        users = msgspec.json.format(msgspec.json.encode(definitions(names)), indent=1)
        out_names = "".join(f"{name}\n" for name in names.denied).encode()
        authorities = b"".join(path.read_bytes() for path in (authority.folder.ca, *authority.folder.issuers))
        lists = _lists(authority.folder.crl.read_bytes())
    for folder in folders:
        write_file(folder / "ca.pem", authorities, PUBLIC)
        write_file(folder / DEFINITIONS, users, PRIVATE)
        write_file(folder / REVOKED, out_names, PUBLIC)
        for name, data in lists.items():
            write_file(folder / LISTS / name, data, PUBLIC)
    return folders


def _lists(pem: bytes) -> dict[str, bytes]:
    """Every list in ``pem`` under the name that Erlang looks for: ``<hash of its issuer>.r0``."""
    end = b"-----END X509 CRL-----\n"
    found = {}
    for one in pem.split(end)[:-1]:
        issuer = x509.load_pem_x509_crl(one + end).issuer
        found[f"{name_hash(issuer)}.r0"] = one + end
    return found


def _cookie(out: Path, nodes: Sequence[Node]) -> bytes:
    """What nodes know each other by: the cluster's own as long as one of its folders is there."""
    for node in nodes:
        path = out / str(node) / COOKIE
        if path.is_file():
            return path.read_bytes()
    return secrets.token_hex(32).encode()


_UTF8_STRING, _SEQUENCE, _SET = 0x0C, 0x30, 0x31


def name_hash(name: x509.Name) -> str:
    """Eight hex digits: the name of the list's file is ``<hash>.r0``.

    Values are compared in small letters and with single spaces, so that is how they are hashed.
    Source: OpenSSL's X509_NAME_hash, which Erlang's ``public_key:short_name_hash`` follows.
    """
    canonical = b""
    for part in name.rdns:
        attributes = b"".join(
            _tagged(_SEQUENCE, _identifier(attribute.oid) + _tagged(_UTF8_STRING, _folded(str(attribute.value))))
            for attribute in part
        )
        canonical += _tagged(_SET, attributes)
    digest = hashlib.sha1(canonical, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _folded(value: str) -> bytes:
    # bytes.lower() makes ASCII alone small, as OpenSSL does.
    return b" ".join(word for word in value.encode().lower().split(b" ") if word)


def _identifier(oid: x509.ObjectIdentifier) -> bytes:
    first, second, *rest = (int(number) for number in oid.dotted_string.split("."))
    content = b""
    for number in (first * 40 + second, *rest):
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(number & 0x7F | 0x80)
        content += bytes(reversed(septets))
    return _tagged(0x06, content)


def _tagged(tag: int, content: bytes) -> bytes:
    if len(content) < 128:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


EXCHANGE, VHOST = "amq.topic", "/"
_PREFIX = PREFIX.replace("/", r"\.")
_ANY, _ANY_FEDERATION = r"[^.]+", r"[^.#]+"


def definitions(names: Names) -> dict[str, Any]:
    """RabbitMQ's definitions: a user without a password for every certificate that stands, and what it may do.

    Raises:
        IdentityRefused: a name with a dot, which would come out of a routing key as ``/``.
    """
    users = [*names.coordinators, *names.devices]
    dotted = [name for name in users if "." in name]
    if dotted:
        raise IdentityRefused(
            f"RabbitMQ delivers '.' in a topic as '/', so {', '.join(repr(name) for name in dotted[:5])}"
            f"{f' and {len(dotted) - 5} more' if len(dotted) > 5 else ''} cannot be there; nothing was written",
            hint="enrol the device under another id and revoke this one, or use Mosquitto",
        )
    return {
        "vhosts": [{"name": VHOST}],
        "users": [
            {
                "name": name,
                # No password is right: users are known by their certificates.
                "password_hash": "",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": [],
                "limits": {},
            }
            for name in users
        ],
        "permissions": [{"user": name, "vhost": VHOST, **queue_permissions(name)} for name in users],
        "topic_permissions": [
            {"user": name, "vhost": VHOST, "exchange": EXCHANGE, **topic_expressions(name)} for name in users
        ],
        "parameters": [],
        "policies": [],
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }


def queue_permissions(name: str) -> dict[str, str]:
    """What a user may do with queues and exchanges: have its own subscription, publish, and subscribe."""
    own = f"mqtt-subscription-CN={name}qos[01]"
    return {"configure": f"^{own}$", "write": rf"^({own}|amq\.topic)$", "read": rf"^({own}|amq\.topic)$"}


def topic_expressions(name: str) -> dict[str, str]:
    """Which routing keys a user may publish with and which filters it may subscribe to; ``@...`` is a coordinator."""
    if name.startswith("@"):
        base = rf"^{_PREFIX}\.{federation_of(name)}"
        return {"write": rf"{base}\.(dn\.{_ANY}|all)\.{_ANY}$", "read": rf"{base}\.up\.(#|{_ANY}\.{_ANY})$"}
    base = rf"^{_PREFIX}\.{_ANY_FEDERATION}"
    return {"write": rf"{base}\.up\.{name}\.{_ANY}$", "read": rf"{base}\.(dn\.{name}|all)\.{_ANY}$"}
