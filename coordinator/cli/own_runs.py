"""Which runs were begun here, by this account: a record outside of their directories, which can be unpacked or copied.

A run is known by the nonce in its ledger and the digest of its configuration: whoever has both has a configuration that
this account has begun with, wherever its directory lies now. Only runs whose configuration names something that is not
followed for anybody's asking have a record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from coordinator.ledger.records import Federation

_NONCE = re.compile(r"[0-9a-f]{32}")


def records_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``apportion/runs`` below ``XDG_STATE_HOME``, which is ``~/.local/state`` where it is unset."""
    given = environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    return base / "apportion" / "runs"


def remember(run: Federation) -> None:
    """Write down that ``run`` was begun here.

    Raises:
        OSError: the record cannot be written.
    """
    folder = records_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    path = folder / run.nonce
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{_digest(run)}\n")


def is_own(run: Federation) -> bool:
    """Whether ``run`` was begun here with the configuration that it has now."""
    if not _NONCE.fullmatch(run.nonce):
        return False  # of a release that had none, or the name of another file
    with contextlib.suppress(OSError, UnicodeDecodeError, RuntimeError):  # RuntimeError: an account without a home
        path = records_folder() / run.nonce
        is_mine = path.stat().st_uid == os.geteuid()
        return is_mine and path.read_text(encoding="ascii").strip() == _digest(run)
    return False


def _digest(run: Federation) -> str:
    return hashlib.sha256(run.config.encode()).hexdigest()
