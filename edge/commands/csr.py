"""``apportion csr``: a device's key and certificate request. Runs on devices, where nothing of the coordinator is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb
from edge.identity.device_identity import make_request

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
    return run_verb(parser, arguments, _csr, _tell)


def _csr(chosen: argparse.Namespace) -> dict[str, Any]:
    files = make_request(chosen.out.expanduser(), chosen.device)
    return {"device": chosen.device, "key": str(files.key), "request": str(files.request)}


def _tell(values: dict[str, Any]) -> None:
    print(
        f"{values['key']} stays here; give {values['request']} to: apportion ca sign FILE --device {values['device']}"
    )
