"""Which certificate or browser device may use which topics, as Mosquitto's access file; docs/wire-protocol.md's topics.

A device writes below its own ``up`` and reads its own ``dn`` and what is for all. A coordinator has the topics of its
federation, and so has ``apportion device``, which asks devices who is there while a run goes on. Rules hold for
connections that are open already: a revoked name loses every topic when they are reloaded.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.identity.names import coordinator_name, fleet_name
from coordinator.identity.records import BrowserDevice, IssuedCertificate
from edge.contracts.topics import PREFIX

_HEAD = "# Written from the identity's record: changes here are lost.\n"


def access_rules(
    certificates: Iterable[IssuedCertificate], now: float, browsers: Iterable[BrowserDevice] = ()
) -> bytes:
    """The access file for everything that was issued; ``now`` in seconds since 1970."""
    coordinators, denied, standing = set(), set(), set()
    for certificate in certificates:
        if certificate.kind == "server":
            continue
        if certificate.status(now) == "valid":
            standing.add(certificate.name)
            if certificate.kind == "coordinator":
                # Both names, whichever has a certificate: a broker's files need not be written anew for the other.
                federation = certificate.name.removeprefix("@").partition("@")[0]
                coordinators |= {coordinator_name(federation), fleet_name(federation)}
        else:
            denied.add(certificate.name)
    for browser in browsers:
        (standing if browser.revoked_at is None else denied).add(browser.device)
    blocks = [_HEAD]
    for name in sorted(coordinators - (denied - standing)):
        federation = f"{PREFIX}/{name.removeprefix('@').partition('@')[0]}"
        topics = f"topic read {federation}/up/#\ntopic write {federation}/dn/#\ntopic write {federation}/all/#\n"
        blocks.append(f"user {name}\n{topics}")
    blocks += [f"user {name}\ntopic deny #\n" for name in sorted(denied - standing)]
    # %u is the name in the client's certificate, or of the user whose password a browser gave.
    blocks.append(f"pattern write {PREFIX}/+/up/%u/#\npattern read {PREFIX}/+/dn/%u/#\npattern read {PREFIX}/+/all/#\n")
    return "\n".join(blocks).encode()
