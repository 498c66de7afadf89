"""What the address of a ledger may not hold: it is in the run's configuration, and in the list of processes."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit


def has_password(address: str) -> bool:
    """Whether a password stands in ``address``: after the user's name, or among its options as libpq reads them."""
    user, _, _ = urlsplit(address).netloc.rpartition("@")
    options = parse_qsl(urlsplit(address).query, keep_blank_values=True)
    return ":" in user or any(name.lower() in ("password", "sslpassword") for name, _ in options)
