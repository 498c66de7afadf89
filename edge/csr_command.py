"""``apportion csr``: a device's key and certificate request. Runs on devices, where nothing of the coordinator is."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from edge.contracts.errors import ApportionError
from edge.device_identity import make_request

EXAMPLE = "Example: apportion csr --device pi-07 --out identity"


def csr_command(arguments: list[str]) -> int:
    """Run the verb; the exit status: 0, 1 when nothing could be written, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="apportion csr",
        description="Make this device's private key, unless it is there, and a certificate request for it.",
        epilog=EXAMPLE,
        allow_abbrev=False,
    )
    parser.add_argument("--device", required=True, metavar="ID", help="this device's id")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for device.key and device.csr")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout at the end")
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as finished:
        return int(finished.code or 0)
    try:
        files = make_request(chosen.out.expanduser(), chosen.device)
    except ApportionError as error:
        return _failed(chosen.json, error.code, str(error), error.hint, error.exit_code)
    except OSError as error:
        return _failed(chosen.json, "system", str(error), "see the rights and the space of that place", 1)
    values = {"device": chosen.device, "key": str(files.key), "request": str(files.request)}
    if chosen.json:
        print(json.dumps({"schema": "apportion.csr/1", "ok": True, **values}))
    else:
        print(f"{files.key} stays here; give {files.request} to: apportion ca sign FILE --device {chosen.device}")
    return 0


def _failed(as_json: bool, code: str, message: str, hint: str, status: int) -> int:
    print(f"error [{code}]: {message}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
    if as_json:
        error = {"code": code, "message": message, "hint": hint}
        print(json.dumps({"schema": "apportion.csr/1", "ok": False, "error": error}))
    return status
