"""``apportion verify DIR``: repeat the parity gate on an artifact's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb

EXAMPLE = "Example: apportion verify artifact --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("verify", epilog=EXAMPLE)(verify)


@verb("verify")
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder that `apportion export` wrote")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Rebuild the module an artifact came from and hold its shipped graphs against torch float64."""
    from coordinator.cli.exporting import rebuild_module
    from coordinator.cli.results import manifest_of
    from export.bundle import verify_artifact

    parity = verify_artifact(folder, rebuild_module(manifest_of(folder).build))
    if not as_json:
        print(
            f"{folder}: gradients {parity.max_grad_rel_err:.2e} from float64, tolerance {parity.tolerance:.2e} "
            f"(torch float32: {parity.torch_fp32_rel_err:.2e}), loss {parity.loss_rel_err:.2e}, {parity.steps} steps"
        )
    return {
        "max_grad_rel_err": parity.max_grad_rel_err,
        "torch_fp32_rel_err": parity.torch_fp32_rel_err,
        "loss_rel_err": parity.loss_rel_err,
        "tolerance": parity.tolerance,
        "steps": parity.steps,
    }
