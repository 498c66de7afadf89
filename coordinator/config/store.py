"""What may stand in ``[store]``: addresses of a ledger and of blobs, with nothing in them that is secret."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})
"""Schemes where an object appears whole or not at all; elsewhere it is written under another name and moved."""


def url_problem(url: str) -> str:
    """What is wrong with ``url``, in words that repeat no part of it that may be secret; empty when nothing is."""
    scheme, separator, rest = url.partition("://")
    if not separator and "@" not in url:
        return f"'{url}' is no address; give s3://bucket/prefix, or a folder as dir"
    if not separator or not scheme.replace("+", "").isalnum() or "::" in url or "://" in rest:
        return "no single address of the form s3://bucket/prefix; name one store, without what is chained before it"
    # Before anything is shown: whatever follows the scheme may hold a key.
    if "@" in rest:
        return (
            f"{scheme}://... holds a user or a key; give it in the environment (AWS_ACCESS_KEY_ID, a profile, a role)"
        )
    if "?" in rest or "#" in rest:
        return f"{scheme}://... holds options; give them in the environment, or in fsspec's own configuration"
    if ":" in rest.partition("/")[0]:
        return f"{scheme}://... names a host; give it in the environment (AWS_ENDPOINT_URL) and the bucket here"
    if ".." in rest.split("/"):
        return f"{scheme}://... leads upwards (..); write the prefix out"
    if scheme not in ("file", "local", "memory") and not urlsplit(url).netloc:
        return f"{scheme}://... names no bucket; give {scheme}://bucket/prefix"
    return ""


_ELSEWHERE = ("hostaddr", "service", "servicefile", "passfile")
"""Options with which the password of one server goes to another, or that choose where it is read from."""


def has_unsafe_option(address: str) -> str:
    """An option of a PostgreSQL address that a file may not give, since a password follows it; empty: none."""
    names = [name.lower() for name, _ in parse_qsl(urlsplit(address).query, keep_blank_values=True)]
    return next((name for name in names if name in _ELSEWHERE), "")


def has_password(address: str) -> bool:
    """Whether a password stands in ``address``: after the user's name, or among its options as libpq reads them."""
    user, _, _ = urlsplit(address).netloc.rpartition("@")
    options = parse_qsl(urlsplit(address).query, keep_blank_values=True)
    return ":" in user or any(name.lower() in ("password", "sslpassword") for name, _ in options)
