"""``apportion verify DIR``: repeat the parity gate on an artifact's own files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.own_code import HELP, check_code, model_code
from coordinator.cli.waiting import waiting

EXAMPLE = "Example: apportion verify artifact --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("verify", epilog=EXAMPLE)(verify)


@verb("verify")
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder that `apportion export` wrote")],
    allow_code: Annotated[bool, typer.Option("--allow-code", help=HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Rebuild the module an artifact came from and hold its shipped graphs against torch float64.

    Without torch only the artifact's self-test is run.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        return _self_test(folder, as_json=as_json)
    from coordinator.exporting.cut_exporter import rebuild_module
    from edge.training.artifact_folder import read_artifact_folder
    from export.bundle import verify_artifact

    manifest, _ = read_artifact_folder(folder)
    code = [*model_code(manifest.build.get("model", "")), manifest.build.get("step", {}).get("task", "")]
    check_code(code, f"{folder}:", is_allowed=allow_code)
    with waiting(f"checking {folder}: every gradient against torch"):
        parity = verify_artifact(folder, rebuild_module(manifest.build))
    if not as_json:
        print(
            f"{folder}: gradients {parity.max_grad_rel_err:.2e} from float64, tolerance {parity.tolerance:.2e} "
            f"(torch float32: {parity.torch_fp32_rel_err:.2e}), loss {parity.loss_rel_err:.2e}, {parity.steps} steps"
        )
    return {
        "checked": "parity",
        "max_grad_rel_err": parity.max_grad_rel_err,
        "torch_fp32_rel_err": parity.torch_fp32_rel_err,
        "loss_rel_err": parity.loss_rel_err,
        "tolerance": parity.tolerance,
        "steps": parity.steps,
    }


def _self_test(folder: Path, *, as_json: bool) -> dict[str, Any]:
    from edge.commands.verify import SELF_TEST_ONLY, describe, self_test_values
    from edge.training.artifact_folder import self_test_folder

    print(SELF_TEST_ONLY, file=sys.stderr)
    result = self_test_folder(folder)
    if not as_json:
        print(describe(folder, result))
    return self_test_values(result)
