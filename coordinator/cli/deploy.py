"""``apportion deploy RUN_DIR``: the final model as a folder that devices predict with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.own_code import FOREIGN_HELP
from coordinator.cli.waiting import waiting

if TYPE_CHECKING:
    from edge.contracts.inference import InferenceManifest

EXAMPLE = "Example: apportion deploy runs/first --int8 --out model"
MAX_DROP = 0.02
WAIT_S = 60.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("deploy", epilog=EXAMPLE)(deploy)


@verb("deploy")
def deploy(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the directory of a run that has ended")],
    out: Annotated[Path | None, typer.Option(help="folder to write; new or empty")] = None,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="send it to the devices of the run, for their owners to predict with")
    ] = False,
    name: Annotated[str, typer.Option(help="what the release is called on the devices; with --fleet")] = "",
    wait_s: Annotated[float, typer.Option(min=0.0, help="how long devices are waited for; with --fleet")] = WAIT_S,
    local_devices: Annotated[
        int | None, typer.Option(min=0, help="agents to start here; unset: those of cohort.local; with --fleet")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
    format: Annotated[
        str,
        typer.Option(
            help="suffix of the model's file; onnx if unset; of a language model onnx, transformers, peft or gguf"
        ),
    ] = "",
    int8: Annotated[bool, typer.Option("--int8", help="int8 weights and activations: a quarter of the bytes")] = False,
    max_drop: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="how much accuracy int8 may cost on the held-out examples; of a language model, by what share its "
            "perplexity may rise",
        ),
    ] = MAX_DROP,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json of a language model; unset: that of its folder or held-out text")
    ] = None,
    allow_code: Annotated[bool, typer.Option("--allow-code", help=FOREIGN_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Write the final model for inference, checked against torch on the held-out examples; or send it to the fleet."""
    if fleet == (out is not None):
        raise parse_problem("--out", "give a folder to write, or --fleet to send the model to the devices: one of both")
    if fleet:
        if format:
            raise parse_problem("--format", f"'{format}' given; with --fleet each device gets that of its runtime")
        from coordinator.cli.fleet_deployment import FleetOptions, sent_to_fleet

        options = FleetOptions(
            name=name,
            wait_s=wait_s,
            local_devices=local_devices,
            int8=int8,
            max_drop=max_drop,
            allow_code=allow_code,
            quiet=quiet,
        )
        found = sent_to_fleet(run_dir, options)
        if not as_json:
            _tell(found)
        return found
    assert out is not None
    if (written := _language(run_dir, out, format, int8, max_drop, tokenizer, allow_code)) is not None:
        if not as_json:
            _tell_language(written)
        return written
    manifest = deployed(run_dir, out, format=format, int8=int8, max_drop=max_drop, allow_code=allow_code)
    if not as_json:
        print(
            f"{out}: {manifest.file.name}, {manifest.file.size / 1e6:.2f} MB in {manifest.precision}; "
            f"{manifest.described()}"
        )
        print(f"on a device: apportion predict {out} --data FOLDER")
    return {
        "out": str(out),
        "file": manifest.file.name,
        "bytes": manifest.file.size,
        "precision": manifest.precision,
        "examples": manifest.examples,
        "accuracy": manifest.accuracy,
        "torch_accuracy": manifest.torch_accuracy,
        "agreement": manifest.agreement,
        **({"task": manifest.task, "max_error": manifest.max_error} if manifest.task else {}),
    }


def _language(
    run_dir: Path,
    out: Path,
    format: str,
    int8: bool,
    max_drop: float,
    tokenizer: Path | None,
    allow_code: bool,
) -> dict[str, Any] | None:
    """What was written of the language model of ``run_dir``; None of a run of another model."""
    from coordinator.cli.final_model import final_base, final_model
    from coordinator.language.source import is_language

    config, state = final_model(run_dir, allow_code=allow_code)
    if not is_language(config.model.build):
        if tokenizer is not None:
            raise parse_problem("--tokenizer", f"{config.model.build} is no language model; leave it out")
        return None
    from coordinator.deployment.language_model import deploy_language

    precision: Literal["float32", "int8"] = "int8" if int8 else "float32"
    with waiting(f"writing {out}, the factors merged into the base"):
        return deploy_language(
            config,
            state,
            out,
            format=format,
            precision=precision,
            max_drop=max_drop,
            tokenizer=tokenizer,
            base=final_base(run_dir, config),
        )


def _tell_language(found: dict[str, Any]) -> None:
    out = found["out"]
    print(f"{out}: {found['format']}, {found['bytes'] / 1e6:.2f} MB in {found['precision']}, {found['factors']} layers")
    if found.get("positions"):
        print(
            f"perplexity {found['perplexity']:.3f} on {found['positions']} held-out positions, "
            f"torch {found['torch_perplexity']:.3f}"
        )
    if found["format"] == "onnx":
        begin = '--prompt "..."' if found["tokenizer"] else "--tokens 1,2,3"
        print(f"on a device: apportion generate {out} {begin}")
    elif found["format"] == "gguf" and found["tokenizer"]:
        print(f"without its tokenizer: {found['tokenizer']}")


def _tell(found: dict[str, Any]) -> None:
    print(f"{found['name']}: installed on {len(found['installed'])} devices, {found['bytes_down'] / 1e6:.2f} MB sent")
    for device, reason in sorted(found["refused"].items()):
        print(f"  {device} refused: {reason}")
    for device in found["silent"]:
        print(f"  {device} did not answer")
    print("on a device: apportion predict --store STORE --data FOLDER")


def deployed(
    run_dir: Path,
    out: Path,
    *,
    format: str = "",
    int8: bool = False,
    max_drop: float = MAX_DROP,
    allow_code: bool = False,
) -> InferenceManifest:
    """Write the final model of ``run_dir`` into ``out``; what was measured of it.

    Raises:
        ConfigError, LedgerError: as :func:`coordinator.cli.final_model.final_model`; ParityError: as
            :func:`coordinator.deployment.inference_folder.deploy`.
    """
    from coordinator.cli.final_model import final_model
    from coordinator.deployment.inference_folder import deploy as write

    with waiting(f"reading the final model of {run_dir}") as doing:
        config, state = final_model(run_dir, allow_code=allow_code)
        doing(f"writing {out}, each held-out example checked against torch")
        return write(config, state, out, format=format, precision="int8" if int8 else "float32", max_drop=max_drop)
