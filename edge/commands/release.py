"""``apportion release --store STORE``: which deployed model this device uses, and back to the one before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb


def release_command(arguments: list[str]) -> int:
    """Run the verb; the exit status: 0, 1 when the files are damaged, 2 for bad arguments or where there is none."""
    parser = argparse.ArgumentParser(
        prog="apportion release",
        description="The deployed model that this device predicts with, and the one before it.",
        epilog="Example: apportion release --store ~/.apportion --rollback",
        allow_abbrev=False,
    )
    parser.add_argument("--store", required=True, type=Path, help="the agent's store")
    parser.add_argument("--rollback", action="store_true", help="use the one before; again: use the newer one")
    return run_verb(parser, arguments, _release, _tell)


def _release(chosen: argparse.Namespace) -> dict[str, Any]:
    from edge.releases.installed import Release, Releases

    releases = Releases(chosen.store)
    if chosen.rollback:
        releases.roll_back()
    found = releases.read()

    def told(release: Release | None) -> dict[str, Any] | None:
        if release is None:
            return None
        return {
            "name": release.name,
            "federation": release.federation,
            "digest": release.digest,
            "folder": str(releases.folder_of(release)),
            "uses_own": release.uses_own,
        }

    return {"current": told(found.current), "previous": told(found.previous)}


def _tell(values: dict[str, Any]) -> None:
    for word, release in (("in use", values["current"]), ("before", values["previous"])):
        if release is not None:
            print(f"{word:7} {release['name']}  {release['digest'][:12]}  {release['folder']}")
