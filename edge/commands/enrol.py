"""``apportion enrol``: a device trades a claim link for its certificate. Runs on devices, without the coordinator."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb

EXAMPLE = "Example: apportion enrol 'https://192.168.1.10:8443/join#d=pi-07&t=...&p=...' --out identity"


def enrol_command(arguments: list[str]) -> int:
    """Run the verb; the exit status: 0, 1 when nothing could be written, 2 for bad arguments, 3 when it was refused."""
    parser = argparse.ArgumentParser(
        prog="apportion enrol",
        description="Make this device's key and trade a claim link, as its QR code shows it, for a certificate.",
        epilog=EXAMPLE,
        allow_abbrev=False,
    )
    parser.add_argument("link", metavar="LINK", help="the link, between quotes; '-' reads it from stdin")
    parser.add_argument("--device", default="", metavar="ID", help="this device's id, where the link does not say it")
    parser.add_argument("--out", default=Path("identity"), type=Path, metavar="DIR", help="folder (default: identity)")
    return run_verb(parser, arguments, _enrol, _tell)


def _enrol(chosen: argparse.Namespace) -> dict[str, Any]:
    from edge.contracts.claims import ClaimLink
    from edge.identity.enrolment import enrol

    text = sys.stdin.readline(4096) if chosen.link == "-" else chosen.link
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
