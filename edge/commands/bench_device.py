"""``apportion bench device`` where only the device agent is installed; its ladder was written elsewhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb
from edge.commands.profile import (
    AGAIN_HELP,
    CEILING_HELP,
    KEEP_HELP,
    LADDER_HELP,
    QUICK_HELP,
    RUNG_HELP,
    RUNTIME_HELP,
    THREADS_HELP,
)
from edge.measuring.report import LadderArguments
from edge.sharing.sharing import DESCRIPTION, EXAMPLE, SHARE_HELP, YES_HELP, ShareArguments, share


def bench_command(arguments: list[str]) -> int:
    """Run ``bench device``, the only one of its group that a device has alone; 2 for another."""
    if arguments[:1] == ["device"]:
        return bench_device_command(arguments[1:])
    print(f"apportion bench: 'device' expected on a device, got {arguments[:1]}; see: apportion bench device --help",
          file=sys.stderr)  # fmt: skip
    return 2


def bench_device_command(arguments: list[str]) -> int:
    """Run the verb on a device; the exit status: 0, 1 when the file cannot be written, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="apportion bench device", description=DESCRIPTION, epilog=EXAMPLE, allow_abbrev=False
    )
    parser.add_argument("--share", metavar="FILE", type=Path, required=True, help=SHARE_HELP)
    parser.add_argument("--ladder", metavar="DIR", type=Path, required=True, help=LADDER_HELP)
    parser.add_argument("--yes", action="store_true", help=YES_HELP)
    parser.add_argument("--quick", action="store_true", help=QUICK_HELP)
    parser.add_argument("--rung", metavar="N", type=int, action="append", default=[], help=RUNG_HELP)
    parser.add_argument("--runtime", default="", help=RUNTIME_HELP)
    parser.add_argument("--threads", metavar="N,N", default="", help=THREADS_HELP)
    parser.add_argument("--ceiling-mb", metavar="N", type=float, default=0.0, help=CEILING_HELP)
    parser.add_argument("--keep", metavar="DIR", type=Path, help=KEEP_HELP)
    parser.add_argument("--again", action="store_true", help=AGAIN_HELP)
    try:
        return run_verb(parser, arguments, _bench_device)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        return 130


def _bench_device(chosen: argparse.Namespace) -> dict[str, Any]:
    ladder = LadderArguments(
        folder=chosen.ladder,
        quick=chosen.quick,
        rungs=tuple(chosen.rung),
        runtime=chosen.runtime,
        threads=chosen.threads,
        ceiling_mb=chosen.ceiling_mb,
        keep=chosen.keep,
        again=chosen.again,
    )
    return share(ShareArguments(ladder, chosen.share, chosen.yes), to_stderr, asked)


def to_stderr(line: str) -> None:
    """A line for people; stdout has results alone."""
    print(line, file=sys.stderr)


def asked(question: str) -> str:
    """The answer of whoever sits at the terminal; empty where nobody does."""
    if not sys.stdin.isatty():
        print("nobody can be asked here; --yes writes the file", file=sys.stderr)
        return ""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()
