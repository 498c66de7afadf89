"""``apportion contributions CONFIG``: what each layer of a run's model contributes, for sparse updates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb

EXAMPLE = "Example: apportion contributions examples/digits.toml --out contributions.json --measure gradient"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("contributions", epilog=EXAMPLE)(contributions)


@verb("contributions")
def contributions(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the run file (TOML)")],
    out: Annotated[Path, typer.Option(help="file to write, for [method] contributions")],
    measure: Annotated[
        str, typer.Option(help="gradient: first order, seconds; accuracy: fine-tunes each layer alone, minutes")
    ] = "gradient",
    examples: Annotated[
        int, typer.Option(min=64, help="training examples drawn by the run's seed; half are trained on")
    ] = 1024,
    steps: Annotated[int, typer.Option(min=0, help="steps of each fine-tuning, the head's first one included")] = 30,
    lr: Annotated[float, typer.Option(help="learning rate of the fine-tunings; 0: the run's own")] = 0.0,
    weights_out: Annotated[
        Path | None,
        typer.Option(
            help="also gather the statistics of batch norms on the examples first, and write the weights with them to "
            "this file, for [model] weights"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Measure what training each layer of the run's model gains, on examples of the run's own source."""
    import msgspec
    import numpy as np

    from coordinator.cli.waiting import waiting
    from coordinator.contributions.measure import Tuning, measured
    from coordinator.contributions.operations import forward_operations
    from coordinator.contributions.scheme import ordered_layers
    from coordinator.contributions.statistics import gathered
    from coordinator.data.inputs import prepare_inputs
    from coordinator.exporting.cut_exporter import dense_module, run_input_spec
    from coordinator.exporting.run_data import load_run_data
    from coordinator.run_file.loading import load_config
    from coordinator.submodels.build import module_tensors
    from edge.contracts.errors import ConfigError
    from edge.contracts.streams import permutation, stream_seed
    from edge.contracts.tensor_file import encode_tensors

    if measure not in ("gradient", "accuracy"):
        raise parse_problem("--measure", f"'{measure}' is not known; use gradient or accuracy")
    settings = load_config(config)
    if settings.task.name:
        raise ConfigError([f"$.task.name: '{settings.task.name}'; contributions are measured for classification alone"])
    module, spec = dense_module(settings), run_input_spec(settings)
    layers = ordered_layers(module, forward_operations(module, spec))
    dataset = load_run_data(settings)
    seed = settings.federation.seed
    drawn = np.sort(permutation(stream_seed(seed, "contributions"), len(dataset.x_train))[:examples])
    mixed = permutation(stream_seed(seed, "contributions halves"), len(drawn))  # files may be sorted by class
    x, y = prepare_inputs(dataset.x_train[drawn][mixed], spec), dataset.y_train[drawn][mixed]
    training = settings.training
    tuning = Tuning(steps=steps, batch=training.batch, lr=lr or training.lr, seed=seed)
    if weights_out is not None:
        module = gathered(module, x)
        weights_out.write_bytes(encode_tensors(module_tensors(module)))
    with waiting(f"measuring {len(layers)} layers on {len(x)} examples"):
        found = measured(module, layers, x, y, measure, tuning)  # type: ignore[arg-type]
    out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    values: dict[str, Any] = msgspec.to_builtins(found)
    if not as_json:
        for path, gain in found.layers.items():
            print(f"{path:28} weight {sum(gain.blocks):12.6g}  biases from here up {gain.biases:12.6g}")
        print(f"written: {out}")
    return {"out": str(out), **values}
