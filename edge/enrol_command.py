"""``apportion enrol``: a device trades a claim link for its certificate. Runs on devices, without the coordinator."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from edge.contracts.errors import ApportionError

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
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout at the end")
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as finished:
        return int(finished.code or 0)
    try:
        from edge.contracts.claims import ClaimLink
        from edge.enrolment import enrol

        text = sys.stdin.readline(4096) if chosen.link == "-" else chosen.link
        made = enrol(ClaimLink.from_text(text), chosen.out.expanduser(), chosen.device)
    except ApportionError as error:
        return _failed(chosen.json, error.code, str(error), error.hint, error.exit_code)
    except OSError as error:
        return _failed(chosen.json, "system", str(error), "see the rights and the space of that place", 1)
    until = f"{datetime.fromtimestamp(made.not_after, UTC):%Y-%m-%dT%H:%M:%SZ}"
    if chosen.json:
        values = {
            "device": made.device,
            "federation": made.federation,
            "broker": made.broker,
            "folder": str(made.folder),
            "not_after": until,
            "is_new": made.is_new,
            "agent_command": made.agent_command(),
        }
        print(json.dumps({"schema": "apportion.enrol/1", "ok": True, **values}))
    elif made.is_new:
        print(f"'{made.device}' is enrolled until {until}; its key never left {made.folder}. Start it:")
        print(made.agent_command())
    else:
        print(
            f"'{made.device}' was enrolled before, until {until}; nothing was changed. If it was revoked since, remove"
        )
        print(f"{made.folder} and enrol with a new link: a revoked key stays out. To start it:")
        print(made.agent_command())
    return 0


def _failed(as_json: bool, code: str, message: str, hint: str, status: int) -> int:
    print(f"error [{code}]: {message}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
    if as_json:
        error = {"code": code, "message": message, "hint": hint}
        print(json.dumps({"schema": "apportion.enrol/1", "ok": False, "error": error}))
    return status
