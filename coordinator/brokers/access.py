"""Which certificate or browser device may use which topics, as Mosquitto's access file; docs/wire-protocol.md's topics.

A device writes below its own ``up`` and reads its own ``dn`` and what is for all. A coordinator has the topics of its
federation, and so has ``apportion device``, which asks devices who is there while a run goes on. Rules hold for
connections that are open already: a revoked name loses every topic when they are reloaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.identity.names import coordinator_name, fleet_name
from coordinator.identity.records import BrowserDevice, IssuedCertificate
from edge.contracts.topics import PREFIX

_HEAD = "# Written from the identity's record: changes here are lost.\n"


@dataclass(frozen=True)
class Names:
    """Who may come in, and who may not any more.

    Attributes:
        coordinators: ``@<federation>`` and ``@<federation>@fleet``, and those of its shards that have a certificate.
        devices: with a certificate.
        browsers: devices with a browser's key.
        denied: names whose last certificate or key was revoked or has run out.
    """

    coordinators: tuple[str, ...]
    devices: tuple[str, ...]
    browsers: tuple[str, ...]
    denied: tuple[str, ...]


def names_of(certificates: Iterable[IssuedCertificate], now: float, browsers: Iterable[BrowserDevice] = ()) -> Names:
    """The names of everything that was issued, sorted; ``now`` in seconds since 1970."""
    coordinators, devices, denied, standing = set(), set(), set(), set()
    for certificate in certificates:
        if certificate.kind == "server":
            continue
        if certificate.status(now) == "valid":
            standing.add(certificate.name)
            if certificate.kind == "coordinator":
                # Both names, whichever has a certificate: a broker's files need not be written anew for the other.
                federation = federation_of(certificate.name)
                coordinators |= {coordinator_name(federation), fleet_name(federation), certificate.name}
            else:
                devices.add(certificate.name)
        else:
            denied.add(certificate.name)
    in_browsers = set()
    for browser in browsers:
        if browser.revoked_at is None:
            in_browsers.add(browser.device)
        else:
            denied.add(browser.device)
    denied -= standing | in_browsers
    return Names(
        tuple(sorted(coordinators - denied)), tuple(sorted(devices)), tuple(sorted(in_browsers)), tuple(sorted(denied))
    )


def federation_of(name: str) -> str:
    """The federation of a coordinator's or the fleet's ``name``."""
    return name.removeprefix("@").partition("@")[0]


def access_rules(
    certificates: Iterable[IssuedCertificate], now: float, browsers: Iterable[BrowserDevice] = ()
) -> bytes:
    """The access file for everything that was issued; ``now`` in seconds since 1970."""
    names = names_of(certificates, now, browsers)
    blocks = [_HEAD]
    for name in names.coordinators:
        federation = f"{PREFIX}/{federation_of(name)}"
        topics = f"topic read {federation}/up/#\ntopic write {federation}/dn/#\ntopic write {federation}/all/#\n"
        blocks.append(f"user {name}\n{topics}")
    blocks += [f"user {name}\ntopic deny #\n" for name in names.denied]
    # %u is the name in the client's certificate, or of the user whose password a browser gave.
    blocks.append(f"pattern write {PREFIX}/+/up/%u/#\npattern read {PREFIX}/+/dn/%u/#\npattern read {PREFIX}/+/all/#\n")
    return "\n".join(blocks).encode()
