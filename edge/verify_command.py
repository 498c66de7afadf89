"""``apportion verify DIR`` where only the device agent is installed: the artifact's self-test, nothing else."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from edge.artifact_folder import SelfTestResult, self_test_folder
from edge.contracts.errors import ApportionError

SELF_TEST_ONLY = "torch is not installed here: only the self-test is run, gradients are not compared"


def self_test_values(result: SelfTestResult) -> dict[str, object]:
    """The values of ``apportion verify --json`` without torch: what was not measured is null."""
    return {
        "checked": "self-test",
        "max_grad_rel_err": None,
        "torch_fp32_rel_err": None,
        "loss_rel_err": result.loss_rel_err,
        "tolerance": result.tolerance,
        "steps": result.steps,
    }


def describe(folder: Path, result: SelfTestResult) -> str:
    """One line for people."""
    return (
        f"{folder}: losses of {result.steps} steps on {result.runtime} within {result.loss_rel_err:.1e} of the "
        f"manifest's, tolerance {result.tolerance:g}"
    )


def verify_command(arguments: list[str]) -> int:
    """Run the verb; the exit status: 0, 1 when the artifact is bad, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="apportion verify",
        description="Run an artifact's self-test on this device's runtime.",
        epilog="Example: apportion verify artifact --json",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder that apportion export wrote")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout at the end")
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as finished:
        return int(finished.code or 0)
    print(SELF_TEST_ONLY, file=sys.stderr)
    line: dict[str, object] = {"schema": "apportion.verify/1", "ok": True}
    try:
        result = self_test_folder(chosen.folder)
    except ApportionError as error:
        print(f"error [{error.code}]: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        if chosen.json:
            failure = {"code": error.code, "message": str(error), "hint": error.hint}
            print(json.dumps({**line, "ok": False, "error": failure}))
        return error.exit_code
    print(json.dumps({**line, **self_test_values(result)}) if chosen.json else describe(chosen.folder, result))
    return 0
