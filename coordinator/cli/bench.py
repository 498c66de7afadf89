"""``apportion bench step``: one training step on a device runtime beside the same step in torch.

A fair comparison: torch in train mode, float32, the faster of contiguous and channels-last, its default optimizer; both
sides include the optimizer and reading the loss; blocks of ten steps alternate; the median of the blocks counts. Each
side is a process of its own, so that its memory is its own. The device's memory is that of a real agent carrying out
one order through a broker: the trainer's peak alone, and the sum of supervisor and trainer.

``cpu_s`` is the processor time of a step on the device, of all its threads. ``share_of_peak`` sets the step's
multiply-adds per second of that time against what one core does at most, as :mod:`edge.measuring.fma_peak` measures
between the blocks; it is null where there is no C++ compiler.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.ladder import written_values
from coordinator.cli.profile import WRITTEN_FIRST
from coordinator.cli.waiting import waiting
from coordinator.planning.planner import MB
from edge.commands.bench_device import asked, to_stderr
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
from edge.contracts.errors import DeviceRefused
from edge.measuring.ladder import ladder_path
from edge.measuring.report import LadderArguments
from edge.runtimes import DEFAULT
from edge.sharing.sharing import DESCRIPTION, SHARE_HELP, YES_HELP, ShareArguments, share
from edge.sharing.sharing import EXAMPLE as DEVICE_EXAMPLE
from export.forms.step_form import StepForm

if TYPE_CHECKING:
    from coordinator.cli.bench_device import BenchInputs
    from coordinator.cli.model_arguments import ModelArguments
    from edge.measuring.fma_peak import FmaPeak

AGENT_CEILING_HELP = "once more with an agent that the kernel holds to N MB (2^20 bytes), file pages counted; 0: not"
EXAMPLE = "Example: apportion bench step --model resnet20 --threads 1 --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    group = typer.Typer(no_args_is_help=True, help="Measure on this machine, beside torch.", epilog=EXAMPLE)
    group.command("step", epilog=EXAMPLE)(bench_step)
    group.command("device", help=DESCRIPTION, epilog=DEVICE_EXAMPLE)(bench_device)
    app.add_typer(group, name="bench")


@verb("bench")
def bench_step(
    model: Annotated[
        str,
        typer.Option(
            help="name of a model, timm:NAME, torchvision:NAME, transformers:TYPE, or package.module:function"
        ),
    ],
    runtime: Annotated[str, typer.Option(help="device runtime")] = DEFAULT,
    batch: Annotated[int, typer.Option(min=1, help="examples per step")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="intra-op threads of both sides")] = 1,
    freeze: Annotated[int, typer.Option(min=0, help="freeze the stem and the first K blocks")] = 0,
    cut: Annotated[str, typer.Option(help="submodel, method:level[,key=value]")] = "",
    optimizer: Annotated[str, typer.Option(help="of both sides: sgd (momentum 0.9), adam or adamw")] = "sgd",
    input_shape: Annotated[str, typer.Option("--input", help="shape of one example, e.g. 3,32,32")] = "",
    classes: Annotated[int, typer.Option(min=0, help="number of classes; 0: the model's own")] = 0,
    blocks: Annotated[int, typer.Option(min=3, help="blocks of ten steps per side")] = 9,
    option: Annotated[list[str] | None, typer.Option(help="of the model, key=value, e.g. norm=group")] = None,
    micro_batches: Annotated[int, typer.Option(min=1, help="parts of a batch that run one after the other")] = 1,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="compute again in the backward pass, keep less")
    ] = False,
    keep: Annotated[str, typer.Option(help="activations wait for the backward pass in this type: float16")] = "",
    base: Annotated[str, typer.Option(help="of a language model: float32, float16, int8 or int4")] = "",
    seq: Annotated[int, typer.Option(min=0, help="symbols of an example of a language model; 0: 128")] = 0,
    ceiling_mb: Annotated[float, typer.Option(metavar="N", min=0, help=AGENT_CEILING_HELP)] = 0.0,
    cached: Annotated[
        str, typer.Option(help="keep what frozen layers give, as float32, float16 or int8; their norms are static")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Time and memory of a training step, as ratios to torch.

    A language model has random values in its public shape, and the ratio is one of processor time. With --cached steps
    are those after the first epoch, and those of the same cut without kept features alternate with them.
    """
    from coordinator.cli.model_arguments import ModelArguments, kept_type, parse_shape
    from coordinator.language.source import PREFIX
    from export.language.architecture import PUBLIC
    from export.training_step import CachedFeatures

    form = StepForm(micro_batches, recompute, kept_type(keep))
    model = PREFIX + model if model in PUBLIC else model
    options = (*(option or ()), *([f"base={base}"] if base else []))
    shape = (seq,) if seq else parse_shape(input_shape)
    if cached not in (kinds := get_args(CachedFeatures)):
        raise parse_problem("--cached", f"'{cached}' is unknown, known are {' and '.join(filter(None, kinds))}")
    kept = cast("CachedFeatures", cached)
    norm: Literal["batch", "static"] = "static" if kept else "batch"
    arguments = ModelArguments(model, shape, classes, batch, freeze, cut, optimizer, form, options, kept, norm)
    with waiting(f"exporting {model}, then {blocks} blocks of ten steps on either side"):
        values = measured_step(arguments, runtime, threads, blocks, ceiling_mb)
    if not as_json:
        print(
            f"{model} on {runtime}, {form.name}, batch {batch}, {threads} threads: {values['step_ms']:.1f} ms, "
            f"{values['ratio_to_torch']:.2f} x torch ({values['torch_step_ms']:.1f} ms, {values['torch_layout']}), "
            f"{1e3 * values['cpu_s']:.1f} ms of processor time"
            + (f", {values['share_of_peak']:.0%} of a core's peak; " if values["share_of_peak"] else "; ")
            + (f"{values['ratio_to_uncached']:.2f} x the step without kept features; " if cached else "")
            + f"{values['trainer']} trainer {values['trainer_peak_mb']:.0f} MB, "
            f"with supervisor {values['process_peak_mb']:.0f} MB, torch {values['torch_peak_rss_mb']:.0f} MB"
            + (
                f"; below {ceiling_mb:g} MB ({values['ceiling_kind']}): loss {values['ceiling_loss']:.6g}, "
                f"{values['loss']:.6g} without"
                if ceiling_mb
                else ""
            )
        )
    return values


@verb("bench-device")
def bench_device(
    file: Annotated[Path, typer.Option("--share", metavar="FILE", help=SHARE_HELP)],
    ladder: Annotated[Path, typer.Option(metavar="DIR", help=LADDER_HELP + WRITTEN_FIRST)] = Path("ladder"),
    yes: Annotated[bool, typer.Option("--yes", help=YES_HELP)] = False,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    rung: Annotated[list[int] | None, typer.Option(metavar="N", help=RUNG_HELP)] = None,
    runtime: Annotated[str, typer.Option(help=RUNTIME_HELP)] = "",
    threads: Annotated[str, typer.Option(metavar="N,N", help=THREADS_HELP)] = "",
    ceiling_mb: Annotated[float, typer.Option(metavar="N", min=0, help=CEILING_HELP)] = 0.0,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help=KEEP_HELP)] = None,
    again: Annotated[bool, typer.Option("--again", help=AGAIN_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """As :mod:`edge.commands.bench_device`; writes the ladder where there is none."""
    if not ladder_path(ladder).exists():
        written_values(ladder, runtime=runtime, quick=quick)
    arguments = LadderArguments(ladder, quick, tuple(rung or ()), runtime, threads, ceiling_mb, keep, again)
    return share(ShareArguments(arguments, file, yes), to_stderr, asked)


def measured_step(
    arguments: ModelArguments, runtime: str, threads: int, blocks: int, ceiling_mb: float = 0.0
) -> dict[str, Any]:
    """Time and memory of a step on ``runtime`` and in torch, each with ``threads``; the medians of ``blocks`` blocks.

    Args:
        ceiling_mb: a second agent works below so many MB (2^20 bytes); 0: there is none.

    Raises:
        ConfigError: as :meth:`ModelArguments.prepare`, or a ceiling that cannot be; ExportRefused; ParityError.
    """
    from coordinator.cli.bench_device import exported_inputs, measure_agent
    from coordinator.cli.bench_features import PlainSide
    from coordinator.cli.bench_sides import DeviceSide, TorchSide

    with tempfile.TemporaryDirectory(prefix="apportion-bench-") as name:
        folder = Path(name)
        inputs = exported_inputs(arguments, runtime, folder)
        manifest = inputs.manifest
        with ExitStack() as stack:
            device = stack.enter_context(DeviceSide(inputs, threads))
            torch_side = stack.enter_context(TorchSide(inputs, threads))
            plain: PlainSide | None = None
            if arguments.cached_features:
                plain = stack.enter_context(PlainSide(arguments, inputs, device, folder, threads))
                plain.first_epoch()
            device.block(), torch_side.block()
            if plain:
                plain.block()
            device_ms, torch_ms, cpu_ms, torch_cpu, peak = [], [], [], [], _peak(folder)
            for _ in range(blocks):
                device_ms.append(device.block())
                torch_ms.append(torch_side.block())
                cpu_ms.append(device.cpu_ms)
                torch_cpu.append(torch_side.cpu_ms)
                if plain:
                    plain.block()
                if peak:
                    peak.measure()
            torch_peak, layout = torch_side.peak_bytes, torch_side.layout
        memory = measure_agent(inputs, folder, threads).report
        below = _below(inputs, folder / "below", threads, ceiling_mb) if ceiling_mb else {}
    # Steps of seconds are measured on machines that do something else, too.
    compared = (cpu_ms, torch_cpu) if inputs.base else (device_ms, torch_ms)
    cpu_s, work = statistics.median(cpu_ms) / 1e3, manifest.cost.step_work
    macs = work.convolution_macs + work.matrix_macs if work else 0
    return {
        "model": arguments.model,
        "runtime": runtime,
        "form": arguments.form.name,
        "batch": arguments.batch,
        "threads": threads,
        "device_threads": memory.threads,
        "trainer": memory.trainer_kind,
        "optimizer": arguments.optimizer,
        "ratio_to_torch": round(statistics.median(compared[0]) / statistics.median(compared[1]), 3),
        "step_ms": round(statistics.median(device_ms), 3),
        "torch_step_ms": round(statistics.median(torch_ms), 3),
        "torch_layout": layout,
        "cpu_s": round(cpu_s, 6),
        "share_of_peak": round(macs / cpu_s / peak.macs_per_s, 3) if peak and cpu_s and macs else None,
        "trainer_peak_mb": _mb(memory.trainer_peak_bytes),
        "process_peak_mb": _mb(memory.trainer_peak_bytes + memory.supervisor_peak_bytes),
        "idle_rss_mb": _mb(memory.trainer_idle_bytes),
        "torch_peak_rss_mb": _mb(torch_peak),
        "predicted_peak_mb": _mb(memory.trainer_idle_bytes + manifest.cost.predicted_peak_bytes),
        "max_grad_rel_err": manifest.parity.max_grad_rel_err,
        "torch_fp32_rel_err": manifest.parity.torch_fp32_rel_err,
        "parameters": manifest.cost.parameters,
        "cpu_ms": round(statistics.median(cpu_ms), 3),
        "torch_cpu_ms": round(statistics.median(torch_cpu), 3),
        "loss": memory.loss,
        **(plain.values(cpu_ms, arguments.cached_features) if plain else {}),
        **below,
    }


def _below(inputs: BenchInputs, folder: Path, threads: int, ceiling_mb: float) -> dict[str, Any]:
    """The same order once more, with both processes of the agent and the file pages they read below a ceiling."""
    from coordinator.cli.bench_device import measure_agent
    from coordinator.local_devices.control_groups import Limits

    folder.mkdir()
    run = measure_agent(inputs, folder, threads, Limits(memory_bytes=int(ceiling_mb * MB)))
    assert run.ceiling is not None
    return {
        "ceiling_mb": ceiling_mb,
        "ceiling_kind": run.ceiling.kind,
        "ceiling_kills": run.ceiling.kills,
        "ceiling_charged_mb": _mb(run.ceiling.peak_bytes),
        "ceiling_loss": run.report.loss,
        "ceiling_trainer_peak_mb": _mb(run.report.trainer_peak_bytes),
    }


def _peak(folder: Path) -> FmaPeak | None:
    """None where it cannot be measured; stderr says why."""
    from edge.measuring.fma_peak import FmaPeak

    try:
        return FmaPeak(folder)
    except DeviceRefused as error:
        print(f"share_of_peak is null: {error}", file=sys.stderr)
        return None


def _mb(count: int) -> float:
    return round(count / MB, 1)
