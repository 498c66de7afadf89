"""Names a certificate may bear: devices' and federations' ids, coordinators' names, servers' hosts."""

from __future__ import annotations

import ipaddress
import re

from edge.contracts.errors import IdentityRefused, MessageRejected
from edge.contracts.topics import check_name

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")


def coordinator_name(federation: str) -> str:
    """Common name of the coordinator of ``federation``: no device can have it, ids do not begin with ``@``."""
    return f"@{federation}"


def fleet_name(federation: str) -> str:
    """Common name under which ``apportion device`` listens to the devices of ``federation``, beside its coordinator.

    A broker knows a connection by the name in its certificate and ends an older one of the same name: under the
    coordinator's own, every command would interrupt the run.
    """
    return f"{coordinator_name(federation)}@fleet"


def shard_name(federation: str, number: int) -> str:
    """Common name of whoever serves a shard of ``federation``: a connection for each shard, beside the other names."""
    return f"{coordinator_name(federation)}@shard-{number}"


def check_id(name: str, *, what: str) -> str:
    """``name`` itself when it can be a device's or a federation's.

    Raises:
        IdentityRefused: it cannot.
    """
    try:
        return check_name(name, what=what)
    except MessageRejected as error:
        raise IdentityRefused(str(error)) from error


def check_host(host: str) -> str:
    """``host`` itself when it is a DNS name or an address.

    Raises:
        IdentityRefused: it is neither.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise IdentityRefused(
                f"'{host}' is neither a host name nor an address", hint="--name broker.local --name 192.168.1.10"
            ) from None
    return host
