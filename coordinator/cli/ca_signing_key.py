"""``apportion ca signing-key``: a new key for orders and manifests beside the old one, and the old one's end."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.ca_root import IDENTITY
from coordinator.cli.command import verb

EXAMPLE = "Example: apportion ca signing-key new"


class Step(StrEnum):
    """What is done to the key."""

    NEW = "new"
    RETIRE = "retire"


@verb("ca")
def signing_key(
    step: Annotated[Step, typer.Argument(help="new: devices trust a second key; retire: only that one, which signs")],
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="folder of the identity")] = IDENTITY,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Change the key that signs orders and manifests; devices follow at their next hello to a run."""
    from coordinator.identity.authority import Authority
    from coordinator.identity.folder import IdentityFolder
    from coordinator.identity.signing import introduce, retire

    statement = introduce(folder) if step is Step.NEW else retire(folder)
    with Authority(folder) as authority:
        browsers = [one.device for one in authority.records.browsers() if one.revoked_at is None]
    if not as_json:
        if step is Step.NEW:
            print(f"{folder}: change {statement.number}: devices trust a second key, the first one goes on signing.")
            print(
                "Start runs again (apportion resume) so that they tell their devices; later, with or without them all:"
            )
            print("apportion ca signing-key retire")
        else:
            print(f"{folder}: change {statement.number}: the new key signs, the old one counts no more.")
            print("Start runs again (apportion resume); until then they sign with the old key, and say nothing of this")
        if browsers:
            print(f"Devices in browsers do not follow, they open a new link: {', '.join(browsers)}")
    return {
        "dir": str(folder),
        "step": step.value,
        "number": statement.number,
        "keys": [key.hex() for key in statement.keys],
        "not_following": browsers,
        "trust": str(IdentityFolder(folder).signing_public),
    }
