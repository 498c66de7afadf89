"""What of an identity has run out or soon will: certificates, issuers, the revocation list; and what to do about each.

Whoever has a later certificate under the same name is not told of, nor whoever was revoked. The key that signs orders
has no term.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509

from coordinator.identity.authority import CRL_DAYS, Authority
from coordinator.identity.names import coordinator_name, fleet_name
from coordinator.identity.records import IssuedCertificate
from edge.contracts.errors import IdentityRefused

DAY_S = 86_400.0
WITHIN_DAYS = 21
"""What renews itself does so from 30 days before its end: whatever is found this late has not."""
LIST_DAYS = CRL_DAYS // 4
"""A revocation list is good for 30 days, and made anew in its second half wherever a run or a timer does it."""


@dataclass(frozen=True)
class Ending:
    """One thing that has run out or soon will.

    Attributes:
        kind: ``root``, ``issuer``, ``revocation list``, or as :class:`IssuedCertificate` has it.
        name: a certificate's; empty for the other three.
        not_after: seconds since 1970.
        remedy: what a person is to do.
    """

    kind: str
    name: str
    not_after: float
    has_ended: bool
    remedy: str

    def __str__(self) -> str:
        """One line, without the remedy."""
        until = datetime.datetime.fromtimestamp(self.not_after, datetime.UTC)
        what = f"{self.kind} '{self.name}'" if self.name else f"the {self.kind}"
        return f"{what} {'ended' if self.has_ended else 'ends'} {until:%Y-%m-%d %H:%M} UTC"


def endings(authority: Authority, within_days: float = WITHIN_DAYS) -> list[Ending]:
    """What has run out or will within ``within_days``, what has first; the list's limit is :data:`LIST_DAYS`."""
    now, found = authority.now(), []

    def look(kind: str, name: str, not_after: float, remedy: str, days: float = within_days) -> None:
        if not_after <= now + days * DAY_S:
            found.append(Ending(kind, name, not_after, not_after <= now, remedy))

    look("root", "", authority.root_not_after, "make a new identity (apportion ca init) and enrol the devices again")
    if authority.folder.issuers:
        look("issuer", "", authority.issuer_not_after, "apportion ca rotate --offline-root DIR")
    list_remedy = "apportion ca crl --broker-folder DIR, for every broker elsewhere; a timer may do it each week"
    look("revocation list", "", authority.records.revocation_list()[2], list_remedy, min(LIST_DAYS, within_days))
    for certificate in _last_of_each(authority.records.certificates()):
        look(certificate.kind, certificate.name, certificate.not_after, _remedy(certificate))
    return sorted(found, key=lambda ending: ending.not_after)


def list_end(pem: bytes) -> float:
    """When the first of the revocation lists in ``pem`` runs out, in seconds since 1970.

    Raises:
        IdentityRefused: it holds none.
    """
    end = b"-----END X509 CRL-----"
    try:
        lists = [x509.load_pem_x509_crl(block + end) for block in pem.split(end)[:-1]]
        return min(found.next_update_utc.timestamp() for found in lists if found.next_update_utc is not None)
    except ValueError as error:
        raise IdentityRefused(f"no revocation list can be read ({error})", hint="apportion ca crl") from error


def _last_of_each(certificates: list[IssuedCertificate]) -> list[IssuedCertificate]:
    last: dict[tuple[str, str], IssuedCertificate] = {}
    for certificate in certificates:
        known = last.get((certificate.kind, certificate.name))
        if certificate.revoked_at is None and (known is None or known.not_after < certificate.not_after):
            last[certificate.kind, certificate.name] = certificate
    return list(last.values())


def _remedy(certificate: IssuedCertificate) -> str:
    name = certificate.name
    if certificate.kind == "server":
        hosts = " ".join(f"--name {host}" for host in certificate.hosts)
        return f"apportion ca issue-server {hosts}; then the broker's folder anew (apportion ca mosquitto or rabbitmq)"
    if certificate.kind == "coordinator":
        federation = name.removeprefix("@").partition("@")[0]
        if name == fleet_name(federation):
            return "apportion device renews it when it next asks the broker"
        assert name == coordinator_name(federation)
        return f"apportion ca issue-coordinator {federation}; a run takes it up when it is started again"
    return (
        f"its agent renews it while it can hear a run of this release; gone for good: apportion ca revoke {name}; "
        f"ended: revoke it and enrol the device again"
    )
