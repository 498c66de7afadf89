"""``apportion enrol``: a device trades a claim link for its certificate. Runs on devices, without the coordinator."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb

EXAMPLE = (
    "Example: apportion enrol - --out identity    then paste the link: https://192.168.1.10:8443/join#d=pi-07&t=..."
)
SHOWN = (
    "note: LINK as an argument is shown to everyone who can list this machine's processes, and kept in the shell's "
    "history; give '-' and paste it, or --link-file FILE. A later release takes no LINK here"
)


def enrol_command(arguments: list[str]) -> int:
    """Run the verb; the exit status: 0, 1 when nothing could be written, 2 for bad arguments, 3 when it was refused."""
    parser = argparse.ArgumentParser(
        prog="apportion enrol",
        description="Make this device's key and trade a claim link, as its QR code shows it, for a certificate.",
        epilog=EXAMPLE,
        allow_abbrev=False,
    )
    parser.add_argument("link", nargs="?", default="", metavar="LINK", help="'-': the link is read from stdin")
    parser.add_argument("--link-file", type=Path, metavar="FILE", help="file with the link in its first line")
    parser.add_argument("--device", default="", metavar="ID", help="this device's id, where the link does not say it")
    parser.add_argument("--out", default=Path("identity"), type=Path, metavar="DIR", help="folder (default: identity)")
    return run_verb(parser, arguments, _enrol, _tell)


def _enrol(chosen: argparse.Namespace) -> dict[str, Any]:
    from edge.contracts.claims import ClaimLink
    from edge.contracts.errors import ConfigError
    from edge.identity.enrolment import enrol

    if bool(chosen.link) == (chosen.link_file is not None):
        raise ConfigError(["LINK: give '-' and paste the link, or --link-file FILE"])
    text = chosen.link
    if chosen.link_file is not None:
        with chosen.link_file.open(encoding="utf-8", errors="replace") as file:
            text = file.readline(4096)
    elif text != "-":
        print(SHOWN, file=sys.stderr)
    else:
        if sys.stdin.isatty():
            print("paste the link:", file=sys.stderr)
        text = sys.stdin.readline(4096)
    made = enrol(ClaimLink.from_text(text), chosen.out.expanduser(), chosen.device)
    return {
        "device": made.device,
        "federation": made.federation,
        "broker": made.broker,
        "folder": str(made.folder),
        "not_after": f"{datetime.fromtimestamp(made.not_after, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "is_new": made.is_new,
        "agent_command": made.agent_command(),
    }


def _tell(values: dict[str, Any]) -> None:
    device, until, folder = values["device"], values["not_after"], values["folder"]
    if values["is_new"]:
        print(f"'{device}' is enrolled until {until}; its key never left {folder}. Start it:")
    else:
        print(f"'{device}' was enrolled before, until {until}; nothing was changed. If it was revoked since, remove")
        print(f"{folder} and enrol with a new link: a revoked key stays out. To start it:")
    print(values["agent_command"])
