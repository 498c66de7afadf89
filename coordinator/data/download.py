"""A public file by HTTP: whole or not at all, gone on with after an interruption, known by its digest."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from edge.contracts.errors import DataError, StoreUnreachable

PART = ".part"
"""Ends the name of a file that is not whole yet."""
_PIECE = 1 << 18
_TIMEOUT_S = 60.0
_ATTEMPTS = 5
"""Broken connections in a row without a byte between them."""


def download(
    url: str, path: Path, *, size: int, sha256: str, progress: Callable[[int, int], None] = lambda done, size: None
) -> Path:
    """``path`` with the bytes of ``url``; nothing is asked for when it is there and has the digest.

    What came of an earlier try is kept beside it and gone on with (a range request).

    Args:
        progress: called with (bytes that are here, ``size``).

    Raises:
        DataError: bytes of another size or digest, which are removed.
        StoreUnreachable: the server cannot be reached, or refuses; what is here is kept.
    """
    if path.is_file() and path.stat().st_size == size and _digest(path) == sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART)
    failed = 0
    while (here := part.stat().st_size if part.exists() else 0) < size:
        why = _more(url, part, size, progress)
        if not why:
            break
        failed = 0 if part.exists() and part.stat().st_size > here else failed + 1
        if failed == _ATTEMPTS:
            raise StoreUnreachable(
                f"{url}: {why}; {here} of {size} bytes are here and are gone on with when the command is repeated"
            )
    found = part.stat().st_size
    if found != size or (digest := _digest(part)) != sha256:
        part.unlink()
        what = f"{found} bytes, {size} expected" if found != size else f"SHA-256 {digest}, {sha256} expected"
        raise DataError(f"{url}: {what}; it is not the file that is meant, and was removed; try again, or tell us")
    part.replace(path)
    return path


def _more(url: str, part: Path, size: int, progress: Callable[[int, int], None]) -> str:
    """Append what follows to ``part``; why that ended early, empty where the server's answer came to its end."""
    here = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={here}-"} if here else {})
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            # A server that knows no ranges begins at the beginning.
            goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {here}-")
            with part.open("ab" if goes_on else "wb") as file:
                done = here if goes_on else 0
                while piece := answer.read(_PIECE):
                    file.write(piece)
                    done += len(piece)
                    progress(done, size)
                    if done > size:
                        return ""  # not the file that is meant
            return "" if done == size or not answer.headers.get("Content-Length") else f"it ended after {done} bytes"
    except HTTPError as error:
        # Nothing follows: what is there is shorter than the file that is meant, which its size then tells.
        return "" if error.code == 416 and here else f"status {error.code}"
    except (URLError, OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", "") or error) or type(error).__name__


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
