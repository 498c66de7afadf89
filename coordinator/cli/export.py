"""``apportion export``: one model, one cut, one runtime, one verified artifact folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.waiting import waiting
from edge.runtimes import DEFAULT
from export.forms.step_form import StepForm

if TYPE_CHECKING:
    from coordinator.cli.model_arguments import ModelArguments

EXAMPLE = "Example: apportion export --model resnet20 --batch 32 --out artifact --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("export", epilog=EXAMPLE)(export)


@verb("export")
def export(
    model: Annotated[
        str,
        typer.Option(
            help="name of a model, timm:NAME, torchvision:NAME, transformers:TYPE, or package.module:function"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder to write; new or empty")],
    input_shape: Annotated[str, typer.Option("--input", help="shape of one example, e.g. 3,32,32")] = "",
    classes: Annotated[int, typer.Option(min=0, help="number of classes; 0: the model's own")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="batch size the figures are for")] = 32,
    runtime: Annotated[str, typer.Option(help="device runtime")] = DEFAULT,
    freeze: Annotated[int, typer.Option(min=0, help="freeze the stem and the first K blocks")] = 0,
    cut: Annotated[str, typer.Option(help="submodel, method:level[,key=value], e.g. fedhm:4")] = "",
    option: Annotated[list[str] | None, typer.Option(help="of the model, key=value, e.g. norm=group")] = None,
    micro_batches: Annotated[int, typer.Option(min=1, help="parts of a batch that run one after the other")] = 1,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="compute again in the backward pass, keep less")
    ] = False,
    keep: Annotated[str, typer.Option(help="activations wait for the backward pass in this type: float16")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Export the whole training step of a model, check it against torch, and write it."""
    from coordinator.cli.model_arguments import ModelArguments, kept_type, parse_shape

    form = StepForm(micro_batches, recompute, kept_type(keep))
    arguments = ModelArguments(
        model, parse_shape(input_shape), classes, batch, freeze, cut, form=form, options=tuple(option or ())
    )
    values, told = exported(arguments, runtime, out)
    if not as_json:
        print(told)
    return values


def exported(arguments: ModelArguments, runtime: str, out: Path) -> tuple[dict[str, Any], str]:
    """Write the verified artifact of a step into ``out``; its figures, and what to say of them.

    Raises:
        ConfigError: ``out`` is not empty, or what :meth:`ModelArguments.prepare` raises; ExportRefused; ParityError.
    """
    from export.bundle import export_artifact

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise parse_problem("--out", f"{out} is there already and is not an empty folder; name a new one")
    with waiting(f"building {arguments.model}") as doing:
        prepared = arguments.prepare()
        doing(f"exporting {arguments.model} for {runtime}, every gradient checked against torch")
        manifest = export_artifact(
            prepared.module, prepared.step, out, build=prepared.build, classes=prepared.class_names, runtime=runtime
        )
    parity, cost = manifest.parity, manifest.cost
    told = (
        f"{out}: {len(manifest.programs)} programs, {cost.parameters:,} parameters "
        f"({cost.trained_parameters:,} trained), {cost.predicted_peak_bytes / 1e6:.1f} MB above an idle trainer; "
        f"gradients {parity.max_grad_rel_err:.2e} from float64 (torch float32: {parity.torch_fp32_rel_err:.2e})"
    )
    values = {
        "out": str(out),
        "runtime": runtime,
        "form": arguments.form.name,
        "programs": [p.name for p in manifest.programs],
        "files": {f.name: f.size for f in manifest.files},
        "parameters": cost.parameters,
        "trained_parameters": cost.trained_parameters,
        "macs": cost.macs,
        "predicted_peak_bytes": cost.predicted_peak_bytes,
        "max_grad_rel_err": parity.max_grad_rel_err,
        "torch_fp32_rel_err": parity.torch_fp32_rel_err,
        "export_key": manifest.export_key,
    }
    return values, told
