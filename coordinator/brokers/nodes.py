"""The nodes of a broker cluster, as the command line names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.identity.names import check_host
from edge.contracts.errors import ConfigError, IdentityRefused

MQTTS_PORT, DISTRIBUTION_PORT = 8883, 25672
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Node:
    """One node: ``name@host``, where clients reach it, and where the other nodes do.

    Attributes:
        port: MQTT over TLS.
        distribution_port: of the connections between nodes.
    """

    host: str
    name: str = "rabbit"
    port: int = MQTTS_PORT
    distribution_port: int = DISTRIBUTION_PORT

    def __str__(self) -> str:
        """As nodes call each other."""
        return f"{self.name}@{self.host}"


def parse_nodes(texts: Sequence[str]) -> list[Node]:
    """Nodes of ``[NAME@]HOST[:PORT]``; those on one host get a port between nodes each.

    Raises:
        ConfigError: one that is not usable, or the same one twice; every problem at once.
    """
    nodes: list[Node] = []
    problems: list[str] = []
    for text in texts:
        before, at, rest = text.rpartition("@")
        host, _, port = rest.partition(":")
        try:
            check_host(host)
        except IdentityRefused as error:
            problems.append(f"--node {text[:80]!r}: {error}; give [NAME@]HOST[:PORT]")
            continue
        if at and not _NAME.fullmatch(before):
            problems.append(f"--node {text[:80]!r}: {before!r} is no node's name: small letters, digits, '_' and '-'")
        if port and not (port.isdecimal() and 0 < int(port) < 65_536):
            problems.append(f"--node {text[:80]!r}: {port!r} is no port")
            continue
        beside = sum(node.host == host for node in nodes)
        nodes.append(Node(host, before or "rabbit", int(port or MQTTS_PORT), DISTRIBUTION_PORT + beside))
    names = [str(node) for node in nodes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        host = name.partition("@")[2]
        problems.append(f"--node: {name} is there twice; nodes of one host need names: a@{host}, b@{host}")
    if not nodes and not problems:
        problems.append("--node: a cluster has nodes; give --node HOST for each, three of them as a rule")
    if problems:
        raise ConfigError(problems, hint="apportion ca rabbitmq --help")
    return nodes
