"""An authority in a folder: makes the root, issues and revokes, writes the revocation list. ``apportion ca`` drives it.

Everything may be repeated: the same request gives the same certificate again, a revocation stays one. Whoever asks for
another certificate under a name that has one is refused unless the old one is to be replaced.
"""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.identity.certificates import (
    CLOCK_SLACK,
    Kind,
    certificate_pem,
    key_pem,
    leaf_certificate,
    new_key,
    public_bytes,
    read_request,
    revocation_list,
)
from coordinator.identity.folder import PRIVATE, PUBLIC, IdentityFolder, key_beside, write_file
from coordinator.identity.issuers import Issuers, OfflineRoot, create_root
from coordinator.identity.names import check_host, check_id, coordinator_name, fleet_name, shard_name
from coordinator.identity.records import BrowserDevice, IssuedCertificate, Records
from coordinator.identity.signing import SigningKey
from edge.contracts.errors import IdentityRefused

ROOT_DAYS, SERVER_DAYS, CLIENT_DAYS, CRL_DAYS = 3650, 825, 365, 30
SUPERSEDED = "superseded"
RENEW_DAYS = 30
"""In its last days a certificate is renewed when asked for again; the old one then stands until its end."""


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class Issued:
    """A certificate, the file it is in, and whether it was made by this call."""

    certificate: IssuedCertificate
    path: Path
    is_new: bool


class Authority:
    """The authority in ``folder``; a context manager that closes its record.

    Args:
        now: the clock, in UTC.

    Raises:
        IdentityRefused: no authority is there, or its files cannot be read.
    """

    def __init__(self, folder: Path, *, now: Callable[[], datetime.datetime] = _utc_now) -> None:
        self.folder = IdentityFolder(folder)
        self._now = now
        self.records = Records(self.folder.records)
        try:
            self.issuers = Issuers.load(self.folder)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        name: str = "Apportion",
        days: int = ROOT_DAYS,
        offline_root: OfflineRoot | None = None,
        now: Callable[[], datetime.datetime] = _utc_now,
    ) -> Authority:
        """A new authority; ``folder`` appears whole or not at all.

        Args:
            offline_root: where the root's key is kept, instead of in ``folder``; it is made there.

        Raises:
            IdentityRefused: something is there already.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise IdentityRefused(
                f"{folder} exists and is not empty: nothing was written", hint="give a new folder, or use what is there"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            files, valid = IdentityFolder(staging), datetime.timedelta(days=days)
            if offline_root is None:
                create_root(files, name, now(), valid)
            else:
                offline_root.create(name, now(), valid)
                offline_root.sign_issuer(files, now())
            SigningKey.create(files)
            Records.create(files.records).close()
            with cls(staging, now=now) as made:
                made.write_crl()
            os.rename(staging, folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        return cls(folder, now=now)

    def __enter__(self) -> Authority:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the record."""
        self.records.close()

    def now(self) -> float:
        """Seconds since 1970 by this authority's clock."""
        return self._now().timestamp()

    @property
    def root_not_after(self) -> float:
        """When the root's validity ends."""
        return self.issuers.root.not_valid_after_utc.timestamp()

    @property
    def issuer_not_after(self) -> float:
        """When the validity of what signs now ends; the root's where that signs itself."""
        return self.issuers.current.certificate.not_valid_after_utc.timestamp()

    # issue

    def issue_server(self, hosts: Sequence[str], *, replace: bool = False, days: int = SERVER_DAYS) -> Issued:
        """Key and certificate of a server that is reached as ``hosts``, names or addresses; named for the first.

        Raises:
            IdentityRefused: an unusable host, or a certificate for other hosts stands under that name.
        """
        if not hosts:
            raise IdentityRefused("a server's certificate needs a host", hint="--name broker.local --name 192.168.1.10")
        for host in hosts:
            check_host(host)
        return self._issue_here("server", hosts[0], self.folder.server(hosts[0]), hosts, replace, days)

    def issue_coordinator(
        self, federation: str, *, shard: int | None = None, replace: bool = False, days: int = CLIENT_DAYS
    ) -> Issued:
        """Key and certificate of the coordinator of ``federation``, or of whoever serves one of its shards.

        Raises:
            IdentityRefused: an unusable name.
        """
        check_id(federation, what="federation")
        name = coordinator_name(federation) if shard is None else shard_name(federation, shard)
        path = self.folder.coordinator(name.removeprefix("@"))
        return self._issue_here("coordinator", name, path, (), replace, days)

    def issue_fleet(self, federation: str, *, days: int = CLIENT_DAYS) -> Issued:
        """Key and certificate under which ``apportion device`` connects, beside a coordinator that runs.

        Raises:
            IdentityRefused: an unusable name.
        """
        check_id(federation, what="federation")
        path = self.folder.coordinator(f"{federation}@fleet")
        return self._issue_here("coordinator", fleet_name(federation), path, (), False, days)

    def sign_device(self, request: bytes, device: str, *, replace: bool = False, days: int = CLIENT_DAYS) -> Issued:
        """The certificate of ``device`` for the key in its PEM ``request``.

        Raises:
            IdentityRefused: an unusable id or request, or another key's certificate stands under that id.
        """
        with self.records.transaction():
            issued = self.certify_device(request, device, replace=replace, days=days)
        return self.deliver(issued)

    def certify_device(self, request: bytes, device: str, *, replace: bool = False, days: int = CLIENT_DAYS) -> Issued:
        """As :meth:`sign_device`, in a transaction of the caller's and without the file, which is :meth:`deliver`'s."""
        check_id(device, what="device id")
        key = read_request(request, device)
        if self.records.standing_browser(device) is not None:
            if not replace:
                raise IdentityRefused(
                    f"device '{device}' is in a browser that has its key: it cannot have a certificate too",
                    hint=f"revoke it first (apportion ca revoke {device}), or give --replace",
                )
            self.records.revoke_browser(device, self.now(), SUPERSEDED)
        return self._certify("device", device, self.folder.device(device), key, (), replace, days)

    def deliver(self, issued: Issued) -> Issued:
        """Write the certificate's file, and the revocation list if a certificate was replaced."""
        write_file(issued.path, issued.certificate.pem, PUBLIC)
        standing = self.records.certificates(issued.certificate.kind, issued.certificate.name)
        if issued.is_new and any(other.revoked_at is not None for other in standing):
            self.write_crl()
        return issued

    def _issue_here(self, kind: Kind, name: str, path: Path, hosts: Sequence[str], replace: bool, days: int) -> Issued:
        """A certificate whose key is kept beside it; the same one again as long as both are there."""
        standing = self._standing(kind, name)
        # A standing one whose key is gone, or was never written, is of no use to anyone: it is replaced.
        lost = standing is not None and not _is_written(standing, path)
        if standing and standing.hosts == tuple(hosts) and not lost and not replace:
            return Issued(standing, path, False)
        key = new_key()
        with self.records.transaction():
            issued = self._certify(kind, name, path, key.public_key(), hosts, replace or lost, days)
        write_file(key_beside(path), key_pem(key), PRIVATE)
        return self.deliver(issued)

    def _certify(
        self,
        kind: Kind,
        name: str,
        path: Path,
        key: ec.EllipticCurvePublicKey,
        hosts: Sequence[str],
        replace: bool,
        days: int,
    ) -> Issued:
        standing = self._standing(kind, name)
        if standing is not None and not replace:
            if standing.public_key == public_bytes(key) and standing.hosts == tuple(hosts):
                return Issued(standing, path, False)
            until = datetime.datetime.fromtimestamp(standing.not_after, datetime.UTC)
            raise IdentityRefused(
                f"{kind} '{name}' has a certificate with another key or other hosts until {until:%Y-%m-%d}, "
                f"serial {standing.serial}; nothing was issued",
                hint=f"revoke it first (apportion ca revoke {name}), or give --replace",
            )
        now = self._now()
        _refuse_revoked_key(self.records.certificates(kind, name), public_bytes(key))
        issuer = self.issuers.current
        issuer.require_valid(now, issuer.certificate == self.issuers.root)
        certificate = leaf_certificate(
            kind,
            name,
            key,
            issuer=issuer.certificate,
            issuer_key=issuer.key,
            now=now,
            valid=datetime.timedelta(days=days),
            hosts=hosts,
        )
        if replace:
            for other in self.records.certificates(kind, name):
                self.records.revoke(other.serial, now.timestamp(), SUPERSEDED)
        record = IssuedCertificate(
            serial=f"{certificate.serial_number:x}",
            kind=kind,
            name=name,
            hosts=tuple(hosts),
            public_key=public_bytes(key),
            not_before=certificate.not_valid_before_utc.timestamp(),
            not_after=certificate.not_valid_after_utc.timestamp(),
            pem=certificate_pem(certificate) + issuer.chain,
        )
        self.records.add(record)
        return Issued(record, path, True)

    def _standing(self, kind: Kind, name: str) -> IssuedCertificate | None:
        """The certificate under that name which is neither revoked nor about to end."""
        renewable = self.now() + RENEW_DAYS * 86_400
        found = [c for c in self.records.certificates(kind, name) if c.revoked_at is None and c.not_after > renewable]
        return found[-1] if found else None

    # revoke

    def revoke(self, name: str, *, reason: str = "revoked") -> list[IssuedCertificate | BrowserDevice]:
        """Revoke all that ``name`` (a device, ``@<federation>``, a host) has: certificates, a browser's key, and unused
        claim tokens.

        Gives what this call revoked, nothing if all was; the revocation list is written either way.

        Raises:
            IdentityRefused: nothing was ever issued to that name.
        """
        with self.records.transaction():
            tokens = self.records.drop_tokens(name)
            issued, browsers = self.records.certificates(None, name), self.records.browsers()
            if not issued and not tokens and not any(browser.device == name for browser in browsers):
                names = {c.name for c in self.records.certificates()} | {browser.device for browser in browsers}
                known = ", ".join(sorted(names)) or "none"
                raise IdentityRefused(f"nothing was issued to '{name}'; known: {known}", hint="apportion ca ls")
            revoked: list[IssuedCertificate | BrowserDevice] = [c for c in issued if c.revoked_at is None]
            for certificate in revoked:
                self.records.revoke(certificate.serial, self.now(), reason)
            browser = self.records.revoke_browser(name, self.now(), reason)
            revoked += [] if browser is None else [browser]
        self.write_crl()
        return revoked

    def write_crl(self, *, days: int = CRL_DAYS) -> datetime.datetime:
        """Write the revocation list anew, good for ``days``; when its validity ends."""
        with self.records.transaction():
            now = self._now()
            number, before, _ = self.records.revocation_list()
            # Rising by whole seconds: of two lists OpenSSL takes the one with the later date, not the later number.
            this_update = max(now - CLOCK_SLACK, _instant(before + 1)).replace(microsecond=0)
            next_update = (now + datetime.timedelta(days=days)).replace(microsecond=0)
            revoked = [
                (c.pem, int(c.serial, 16), _instant(c.revoked_at))
                for c in self.records.certificates()
                if c.revoked_at is not None and c.not_after > now.timestamp()
            ]
            # Of each that may have issued what still stands; a broker takes the one of the certificate it is shown.
            data = b"".join(
                revocation_list(
                    [(serial, when) for pem, serial, when in revoked if issuer.has_issued(pem)],
                    number=number + 1,
                    issuer=issuer.certificate,
                    issuer_key=issuer.key,
                    this_update=this_update,
                    next_update=next_update,
                )
                for issuer in self.issuers.all
            )
            self.records.set_revocation_list(number + 1, this_update.timestamp(), next_update.timestamp())
            write_file(self.folder.crl, data, PUBLIC)
        return next_update


def _refuse_revoked_key(issued: Sequence[IssuedCertificate], key: bytes) -> None:
    """A revoked key may be in other hands: certified again it would let them in again."""
    for other in issued:
        if other.public_key == key and other.revoked_at is not None and other.reason != SUPERSEDED:
            raise IdentityRefused(
                f"{other.kind} '{other.name}': the key of this request was revoked ({other.reason}, "
                f"serial {other.serial})",
                hint="delete device.key on the device and make another request: apportion csr",
            )


def _is_written(certificate: IssuedCertificate, path: Path) -> bool:
    return path.exists() and path.read_bytes() == certificate.pem and key_beside(path).exists()


def _instant(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
