"""``apportion ca init`` and ``apportion ca rotate``: the root, here or kept offline, and who signs in its name."""

from __future__ import annotations

import datetime
import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from edge.contracts.errors import IdentityRefused

if TYPE_CHECKING:
    from coordinator.identity.issuers import OfflineRoot

IDENTITY = Path("identity")
PASSPHRASE = "APPORTION_ROOT_PASSPHRASE"
ROTATE_EXAMPLE = "Example: apportion ca rotate --offline-root /media/stick/root"


@verb("ca")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="new folder of the identity")] = IDENTITY,
    name: Annotated[str, typer.Option(help="what the root is called")] = "Apportion",
    days: Annotated[int, typer.Option(min=1, max=36_500, help="validity of the root")] = 3650,
    offline_root: Annotated[
        Path | None,
        typer.Option(
            metavar="ROOT", help=f"new folder for the root's key; its passphrase is asked for, or {PASSPHRASE}"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Make an authority: a root, a revocation list, and the key that signs manifests and orders."""
    from coordinator.identity.authority import Authority

    if not 1 <= len(name) <= 50 or not name.isprintable():
        raise parse_problem("--name", f"{name[:80]!r} is not usable: 1 to 50 printable characters")
    root = None if offline_root is None else _root(offline_root, is_new=True)
    with Authority.create(folder, name=name, days=days, offline_root=root) as made:
        values = {
            "dir": str(folder),
            "ca": str(made.folder.ca),
            "trust": str(made.folder.signing_public),
            "not_after": _date(made.root_not_after),
            "issuer_not_after": _date(made.issuer_not_after),
        }
    if not as_json:
        if offline_root is None:
            print(f"{folder}: a root until {values['not_after']}. Keep the folder secret and backed up; ca.pem and")
            print("signing.pub are for devices. Next: apportion ca issue-server --name HOST")
        else:
            print(f"{offline_root}: a root until {values['not_after']}. Put it away, with a copy elsewhere, and its")
            print(f"passphrase apart. {folder} signs in its name until {values['issuer_not_after']}; before that:")
            print(f"apportion ca rotate --dir {folder} --offline-root {offline_root}")
    return values


@verb("ca")
def rotate(
    offline_root: Annotated[Path, typer.Option(metavar="ROOT", help="folder of the root")],
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="folder of the identity")] = IDENTITY,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Have an offline root sign another issuing certificate. What the former one issued stays good until its end."""
    from coordinator.identity.authority import Authority

    with Authority(folder) as authority:
        if not authority.folder.issuers:
            raise IdentityRefused(
                f"{folder} has its root's key itself: there is no issuing certificate to change",
                hint="a root is kept elsewhere from the beginning: apportion ca init --offline-root",
            )
        _root(offline_root, is_new=False).sign_issuer(authority.folder, datetime.datetime.now(datetime.UTC))
    with Authority(folder) as authority:
        authority.write_crl()
        until = _date(authority.issuer_not_after)
        number = len(authority.folder.issuers)
    if not as_json:
        print(f"{folder}: issuing certificate {number}, until {until}. Devices need nothing: they trust the root.")
        print("Write the broker's folder anew and reload it (apportion ca mosquitto); put the root away again")
    return {"dir": str(folder), "number": number, "issuer_not_after": until}


def _root(folder: Path, *, is_new: bool) -> OfflineRoot:
    from coordinator.identity.issuers import OfflineRoot

    given = os.environ.get(PASSPHRASE)
    if given is None:
        if not sys.stdin.isatty():
            raise parse_problem(
                "--offline-root", f"the root's passphrase is asked at a terminal, or taken from {PASSPHRASE}"
            )
        given = getpass.getpass(f"passphrase of the root in {folder}: ")
        if is_new and getpass.getpass("once more: ") != given:
            raise parse_problem("--offline-root", "the two passphrases differ; nothing was written")
    return OfflineRoot(folder, given)


def _date(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
