"""A password among a command's arguments: everyone who can list the machine's processes sees it."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

PASSWORD_VARIABLE = "APPORTION_BROKER_PASSWORD"
"""Where a password is read from that no URL shows."""


def tell_if_shown(url: str, option: str, *, variable: str = PASSWORD_VARIABLE) -> None:
    """Say on stderr where else the password in ``url``, if there is one, can be given."""
    try:
        is_shown = urlsplit(url).password is not None
    except ValueError:
        return  # no address: said by whoever reads it
    if is_shown:
        print(
            f"note: a password in {option} is shown to everyone who can list this machine's processes; set "
            f"{variable}. A later release takes none there",
            file=sys.stderr,
        )
