"""``apportion verify DIR`` where only the device agent is installed: the artifact's self-test, nothing else."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from edge.commands.outcome import run_verb
from edge.training.artifact_folder import SelfTestResult, self_test_folder

SELF_TEST_ONLY = "torch is not installed here: only the self-test is run, gradients are not compared"


def self_test_values(result: SelfTestResult) -> dict[str, Any]:
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
    return run_verb(parser, arguments, _verify)


def _verify(chosen: argparse.Namespace) -> dict[str, Any]:
    print(SELF_TEST_ONLY, file=sys.stderr)
    result = self_test_folder(chosen.folder)
    if not chosen.json:
        print(describe(chosen.folder, result))
    return self_test_values(result)
