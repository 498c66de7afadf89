"""How every verb of a device ends: a line of JSON where it was asked for, an error with its hint, an exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from edge.contracts.errors import ApportionError
from edge.system.printable import printable_lines

NO_PLACE = "see the rights and the space of that place"


def run_verb(
    parser: argparse.ArgumentParser,
    arguments: list[str],
    verb: Callable[[argparse.Namespace], dict[str, Any]],
    tell: Callable[[dict[str, Any]], None] = lambda values: None,
) -> int:
    """Run ``verb``, which gives the values of ``--json``; the exit status: 0, an error's own, 1 from the system.

    Args:
        parser: of ``apportion VERB``; ``--json`` is added to it.
        tell: prints the values for people, where no JSON was asked for.
    """
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout at the end")
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as finished:
        return int(finished.code or 0)
    schema = f"apportion.{parser.prog.split()[-1]}/1"
    try:
        values = verb(chosen)
    except (ApportionError, OSError) as error:
        code, hint, status = "system", NO_PLACE, 1
        if isinstance(error, ApportionError):
            code, hint, status = error.code, error.hint, error.exit_code
        print(printable_lines(f"error [{code}]: {error}" + (f"\nhint: {hint}" if hint else "")), file=sys.stderr)
        if chosen.json:
            failure = {"code": code, "message": str(error), "hint": hint}
            print(json.dumps({"schema": schema, "ok": False, "error": failure}))
        return status
    if chosen.json:
        print(json.dumps({"schema": schema, "ok": True, **values}))
    else:
        tell(values)
    return 0
