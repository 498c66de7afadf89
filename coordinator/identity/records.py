"""What an authority has issued, revoked and promised, in one SQLite file beside its keys.

A row is on disk before a certificate leaves the authority: what was never recorded could not be revoked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.audit_log.entry import Entry
from coordinator.identity import audit_log
from coordinator.identity.certificates import Kind
from edge.contracts.errors import IdentityRefused

BUSY_S = 10.0
"""How long one command waits for another."""

_SCHEMA = """
CREATE TABLE certificates (
    serial TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, hosts TEXT NOT NULL, public_key BLOB NOT NULL,
    not_before REAL NOT NULL, not_after REAL NOT NULL, pem BLOB NOT NULL, revoked_at REAL, reason TEXT NOT NULL
);
CREATE INDEX certificates_by_name ON certificates (kind, name);
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, device TEXT NOT NULL, secret_sha256 BLOB NOT NULL, expires_at REAL NOT NULL,
    used_at REAL, serial TEXT
);
CREATE TABLE revocation_list (number INTEGER NOT NULL, this_update REAL NOT NULL, next_update REAL NOT NULL);
INSERT INTO revocation_list VALUES (0, 0.0, 0.0);
"""
_BROWSERS = """CREATE TABLE browsers (
    device TEXT NOT NULL, public_key BLOB NOT NULL, password_line TEXT NOT NULL, since REAL NOT NULL, revoked_at REAL,
    reason TEXT NOT NULL
)"""
"""Came with version 2; the audit log with version 3."""
_VERSION = 3
_COLUMNS = "serial, kind, name, hosts, public_key, not_before, not_after, pem, revoked_at, reason"


@dataclass(frozen=True, kw_only=True)
class IssuedCertificate:
    """One row; times are seconds since 1970, ``serial`` is hex, ``public_key`` DER.

    Attributes:
        name: common name: a device's id, ``@<federation>`` of a coordinator, a server's first host.
        hosts: DNS names and addresses of a server.
        revoked_at: None as long as it stands.
    """

    serial: str
    kind: Kind
    name: str
    hosts: tuple[str, ...]
    public_key: bytes
    not_before: float
    not_after: float
    pem: bytes
    revoked_at: float | None = None
    reason: str = ""

    def status(self, now: float) -> str:
        """``valid``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if now < self.not_after else "expired"


@dataclass(frozen=True)
class BrowserDevice:
    """A device in a browser: its public key (DER) and the line of a Mosquitto's password file, which holds a hash.

    Attributes:
        since: when its password was made, in seconds since 1970.
        revoked_at: None as long as it stands.
    """

    device: str
    public_key: bytes
    password_line: str
    since: float
    revoked_at: float | None = None
    reason: str = ""

    @property
    def serial(self) -> str:
        """What it is called by where certificates have a serial number."""
        return f"key-{hashlib.sha256(self.public_key).hexdigest()[:32]}"

    def __repr__(self) -> str:
        """Without the hash of its password."""
        return f"BrowserDevice({self.device}, {self.serial})"


@dataclass(frozen=True)
class TokenRow:
    """A claim token without its secret; ``used_for`` is a certificate's serial number or ``key-<SHA-256>``."""

    device: str
    secret_sha256: bytes
    expires_at: float
    used_at: float | None
    used_for: str = ""


class Records:
    """The file ``path``; every change is in a :meth:`transaction`, so two commands at a time do not cross."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise IdentityRefused(
                f"{path.parent} holds no identity: it has no {path.name}", hint="apportion ca init FOLDER makes one"
            )
        self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        try:
            self._connection.execute("PRAGMA synchronous = FULL")
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            self.close()
            raise IdentityRefused(f"{path}: {error}", hint="bring the folder back from a backup") from error
        if version in (1, 2):
            self._bring_up_to_date()
        elif version != _VERSION:
            self.close()
            raise IdentityRefused(
                f"{path} has version {version}, this release reads {_VERSION}", hint="upgrade this release"
            )

    @classmethod
    def create(cls, path: Path) -> Records:
        """An empty record, readable by its owner only."""
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(f"{_SCHEMA}{_BROWSERS};\nPRAGMA user_version = {_VERSION};")
            audit_log.begin(connection)
            connection.commit()
        return cls(path)

    def _bring_up_to_date(self) -> None:
        """Bring a file of an older version up to date."""
        try:
            with self.transaction():
                # Of two commands at a time the second finds it done.
                (version,) = self._connection.execute("PRAGMA user_version").fetchone()
                if version == 1:
                    self._connection.execute(_BROWSERS)
                if version < _VERSION:
                    audit_log.begin(self._connection)
                    self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written together, or not at all when it raises; nobody else writes meanwhile."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise IdentityRefused(
                f"{self._path} cannot be written ({error}); nothing was changed",
                hint="wait for the other command that uses it, or see the rights of the folder",
            ) from error
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def log(self, action: str, subject: str, **details: Any) -> None:
        """Add an entry to the identity's audit log, in the caller's transaction."""
        audit_log.append(self._connection, action, subject, **details)

    def log_entries(self) -> list[Entry]:
        """The identity's audit log."""
        return list(audit_log.entries(self._connection))

    def add(self, issued: IssuedCertificate) -> None:
        """Record a certificate."""
        self._connection.execute(
            f"INSERT INTO certificates ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                issued.serial,
                issued.kind,
                issued.name,
                "\n".join(issued.hosts),
                issued.public_key,
                issued.not_before,
                issued.not_after,
                issued.pem,
                issued.revoked_at,
                issued.reason,
            ),
        )
        self.log("certificate-issued", f"{issued.kind}:{issued.name}", serial=issued.serial, not_after=issued.not_after)

    def certificates(self, kind: Kind | None = None, name: str | None = None) -> list[IssuedCertificate]:
        """Those of ``kind`` and ``name``, or all, oldest first."""
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM certificates WHERE (?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR name = ?2) "
            "ORDER BY rowid",
            (kind, name),
        )
        return [
            IssuedCertificate(
                serial=row[0],
                kind=row[1],
                name=row[2],
                hosts=tuple(filter(None, row[3].split("\n"))),
                public_key=row[4],
                not_before=row[5],
                not_after=row[6],
                pem=row[7],
                revoked_at=row[8],
                reason=row[9],
            )
            for row in rows
        ]

    def revoke(self, serial: str, when: float, reason: str) -> None:
        """Mark a certificate that stands as revoked."""
        row = self._connection.execute(
            "UPDATE certificates SET revoked_at = ?, reason = ? WHERE serial = ? AND revoked_at IS NULL "
            "RETURNING kind, name",
            (when, reason, serial),
        ).fetchone()
        if row is not None:
            self.log("certificate-revoked", f"{row[0]}:{row[1]}", serial=serial, why=reason)

    def revocation_list(self) -> tuple[int, float, float]:
        """Number, this update and next update of the newest revocation list; zeros before the first."""
        number, this_update, next_update = self._connection.execute("SELECT * FROM revocation_list").fetchone()
        return int(number), float(this_update), float(next_update)

    def set_revocation_list(self, number: int, this_update: float, next_update: float) -> None:
        """Remember the newest revocation list."""
        self._connection.execute(
            "UPDATE revocation_list SET number = ?, this_update = ?, next_update = ?",
            (number, this_update, next_update),
        )

    def add_token(self, token_id: str, row: TokenRow) -> None:
        """Record a token."""
        self._connection.execute(
            "INSERT INTO tokens VALUES (?, ?, ?, ?, NULL, NULL)",
            (token_id, row.device, row.secret_sha256, row.expires_at),
        )
        self.log("token-made", f"device:{row.device}", token=token_id, expires_at=row.expires_at)

    def token(self, token_id: str) -> TokenRow | None:
        """The token, if there is one."""
        row = self._connection.execute(
            "SELECT device, secret_sha256, expires_at, used_at, coalesce(serial, '') FROM tokens WHERE id = ?",
            (token_id,),
        ).fetchone()
        return None if row is None else TokenRow(*row)

    def use_token(self, token_id: str, when: float, serial: str) -> None:
        """Mark a token as used for the certificate ``serial``, or a browser's key."""
        row = self._connection.execute(
            "UPDATE tokens SET used_at = ?, serial = ? WHERE id = ? AND used_at IS NULL RETURNING device",
            (when, serial, token_id),
        ).fetchone()
        if row is not None:
            self.log("device-enrolled", f"device:{row[0]}", token=token_id, used_for=serial)

    def drop_tokens(self, device: str) -> int:
        """Forget the unused tokens of ``device``; how many there were."""
        return self._connection.execute("DELETE FROM tokens WHERE device = ? AND used_at IS NULL", (device,)).rowcount

    def browsers(self) -> list[BrowserDevice]:
        """All there are and were, oldest first."""
        rows = self._connection.execute(
            "SELECT device, public_key, password_line, since, revoked_at, reason FROM browsers ORDER BY rowid"
        )
        return [BrowserDevice(*row) for row in rows]

    def standing_browser(self, device: str) -> BrowserDevice | None:
        """The key and password of ``device`` which are not revoked."""
        return next((b for b in self.browsers() if b.device == device and b.revoked_at is None), None)

    def keep_browser(self, browser: BrowserDevice) -> None:
        """Record a browser device; where its key is known and stands, the password is replaced."""
        changed = self._connection.execute(
            "UPDATE browsers SET password_line = ?, since = ? "
            "WHERE device = ? AND public_key = ? AND revoked_at IS NULL",
            (browser.password_line, browser.since, browser.device, browser.public_key),
        ).rowcount
        if not changed:
            self._connection.execute(
                "INSERT INTO browsers VALUES (?, ?, ?, ?, NULL, '')",
                (browser.device, browser.public_key, browser.password_line, browser.since),
            )
            self.log("browser-added", f"device:{browser.device}", serial=browser.serial)

    def revoke_browser(self, device: str, when: float, reason: str) -> BrowserDevice | None:
        """Mark the key of ``device`` that stands as revoked; it, or None where there is none."""
        standing = self.standing_browser(device)
        self._connection.execute(
            "UPDATE browsers SET revoked_at = ?, reason = ? WHERE device = ? AND revoked_at IS NULL",
            (when, reason, device),
        )
        if standing is not None:
            self.log("browser-revoked", f"device:{device}", serial=standing.serial, why=reason)
        return standing
