"""``apportion costs``: what a level of a method costs on a model, computed from the cut."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.waiting import waiting

EXAMPLE = "Example: apportion costs --method fedhm --model resnet18 --level 4 --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("costs", epilog=EXAMPLE)(costs)


@verb("costs")
def costs(
    method: Annotated[str, typer.Option(help="name of a method")],
    model: Annotated[
        str,
        typer.Option(
            help="name of a model, timm:NAME, torchvision:NAME, transformers:TYPE, or package.module:function"
        ),
    ],
    level: Annotated[str, typer.Option(help="level of the method, as in --cut: a rank factor, a ratio")],
    batch: Annotated[int, typer.Option(min=1, help="batch size of the memory figures")] = 32,
    input_shape: Annotated[str, typer.Option("--input", help="shape of one example, e.g. 3,32,32")] = "",
    classes: Annotated[int, typer.Option(min=0, help="number of classes; 0: the model's own")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Parameters, multiply-accumulates, activations and bytes of one cut."""
    from coordinator.cli.model_arguments import ModelArguments, parse_shape
    from coordinator.submodels.costs import cut_costs

    with waiting(f"counting {model} under {method}:{level}"):
        prepared = ModelArguments(model, parse_shape(input_shape), classes, batch, cut=f"{method}:{level}").prepare()
        values: dict[str, Any] = cut_costs(prepared.dense, prepared.cut, prepared.step.input, batch=batch).to_dict()
    if not as_json:
        for name, value in values.items():
            print(f"{name:20} {value:,}")
    return values
