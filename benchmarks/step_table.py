"""A step of each model on each runtime beside torch, eager and compiled, and beside what a core can do.

    python -m benchmarks.step_table --out table.json [NAME ...]
    python -m benchmarks.step_table --page table.json           # as Markdown, on stdout

All sides of a model are processes of their own with one thread, and take turns: a block of each, then the next block
of each. A block is as many steps as take about a second. What is compared is processor time, which other work on the
machine disturbs least; the medians of the blocks, and the least of them. ``--out`` is written after every model, so
that a run can be ended early, and names that are in it already are left out when it is run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.guard import processor
from coordinator.cli.bench_device import BenchInputs, exported_inputs
from coordinator.cli.bench_sides import DeviceSide, TorchSide
from coordinator.cli.model_arguments import ModelArguments
from edge.contracts.errors import ApportionError
from edge.measuring.fma_peak import FmaPeak

RUNTIMES = ("executorch", "onnxruntime")
EAGER, COMPILED = "torch, eager", "torch.compile"
BLOCK_S = 1.0
"""Of processor time, about: two steps at least."""
MOST_STEPS = 10
HEAD = (
    *("model, batch", "runtime", "ms a step", "torch, eager, ms", "of eager", "`torch.compile`, ms", "of compiled"),
    *("share of a core's peak", "load"),
)


@dataclass(frozen=True)
class Model:
    """What is exported under a name of the table.

    Attributes:
        name: as ``apportion bench step --model`` takes it.
    """

    name: str
    batch: int = 32
    cut: str = ""
    options: tuple[str, ...] = ()
    input_shape: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = RUNTIMES

    def arguments(self) -> ModelArguments:
        """Of its export: every parameter is trained, or the cut's; SGD with momentum."""
        return ModelArguments(self.name, self.input_shape, 0, self.batch, cut=self.cut, options=self.options)


MODELS = {
    "resnet20": Model("resnet20"),
    "resnet18": Model("resnet18"),
    "conv2": Model("conv2"),
    "vit": Model("vit"),
    "lstm": Model("lstm"),
    "depthwise": Model("depthwise"),
    "mobilenet_v3_small": Model("mobilenet_v3_small"),
    "gpt2-lora": Model("language:gpt2", 1, "fedlora:8", ("base=int8",), (128,), ("onnxruntime",)),
}
"""GPT-2's shape with a random int8 base and factors of rank 8, one example of 128 symbols; torch has a float32 base."""


@dataclass
class Side:
    """One of those that take turns.

    Attributes:
        block: runs so many steps.
        cpu_ms: processor time of a step of the last block.
        times: of all blocks but the first.
    """

    block: Callable[[int], object]
    cpu_ms: Callable[[], float]
    times: list[float]
    steps: int = 2

    def turn(self) -> float:
        """A block; gives its time."""
        self.block(self.steps)
        return self.cpu_ms()


def sides_of(model: Model, folder: Path, stack: ExitStack, refused: dict[str, str]) -> Iterator[tuple[str, Side, int]]:
    """Name, side and multiply-adds of a step (0 where nothing counts them) of what runs here.

    Args:
        refused: gains name -> reason of what does not.
    """
    first: BenchInputs | None = None
    macs = 0
    for runtime in model.runtimes:
        try:
            own = folder / runtime
            own.mkdir()
            inputs = exported_inputs(model.arguments(), runtime, own)
            device = stack.enter_context(DeviceSide(inputs, 1))
        except ApportionError as error:
            refused[runtime] = str(error)
            continue
        first = first or inputs
        work = inputs.manifest.cost.step_work
        macs = macs or (work.convolution_macs + work.matrix_macs if work else 0)
        yield runtime, Side(device.block, lambda side=device: side.cpu_ms, []), macs  # type: ignore[misc]
    for name in (EAGER, COMPILED) if first else ():
        torch_side = stack.enter_context(TorchSide(first, 1, compiled=name == COMPILED))
        yield name, Side(torch_side.block, lambda side=torch_side: side.cpu_ms, []), macs  # type: ignore[misc]


def measured(model: Model, blocks: int) -> dict[str, Any]:
    """Times of every side of ``model``, milliseconds of processor time of a step, and the shares of a core's peak."""
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="apportion-step-table-") as name, ExitStack() as stack:
        folder = Path(name)
        peak = FmaPeak(folder)
        sides: dict[str, Side] = {}
        macs = 0
        for which, side, macs in sides_of(model, folder, stack, refused):  # noqa: B007
            try:
                first_ms = side.turn()
            except ApportionError as error:
                refused[which] = str(error)
                continue
            side.steps = max(2, min(MOST_STEPS, round(1e3 * BLOCK_S / max(first_ms, 1.0))))
            sides[which] = side
        for _ in range(blocks):
            for side in sides.values():
                side.times.append(side.turn())
            peak.measure()
        rate = peak.macs_per_s
    return {
        "batch": model.batch,
        "macs": macs,
        "peak_macs_per_s": round(rate),
        "load": round(os.getloadavg()[0], 1),
        "refused": refused,
        "sides": {
            which: {
                "median_ms": round(statistics.median(side.times), 3),
                "least_ms": round(min(side.times), 3),
                "steps": blocks * side.steps,
                "share_of_peak": round(macs / rate / statistics.median(side.times) * 1e3, 3) if macs else None,
            }
            for which, side in sides.items()
        },
    }


def page(table: dict[str, Any]) -> Iterator[str]:
    """Lines of the table in Markdown."""
    yield f"Processor: {table['processor']}; one thread; processor time of a step, medians of {table['blocks']} blocks"
    yield "(in brackets the least block)."
    yield ""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for name, found in table["models"].items():
        sides = found["sides"]
        for runtime in RUNTIMES:
            if runtime not in sides:
                if runtime in found["refused"]:
                    yield f"| {name}, {found['batch']} | {runtime} | does not carry it | | | | | | |"
                continue
            ours, eager, compiled = sides[runtime], sides.get(EAGER), sides.get(COMPILED)
            share = "" if ours["share_of_peak"] is None else f"{ours['share_of_peak']:.0%}"
            cells = [f"{name}, {found['batch']}", runtime, _ms(ours), _ms(eager), _ratio(ours, eager)]
            yield f"| {' | '.join([*cells, _ms(compiled), _ratio(ours, compiled), share, str(found['load'])])} |"


def _ms(side: dict[str, Any] | None) -> str:
    return f"{side['median_ms']:.1f} ({side['least_ms']:.1f})" if side else ""


def _ratio(ours: dict[str, Any], other: dict[str, Any] | None) -> str:
    if other is None:
        return ""
    return f"{ours['median_ms'] / other['median_ms']:.2f} ({ours['least_ms'] / other['least_ms']:.2f})"


def main() -> None:
    """Measure, or print the page of what was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all where none is named")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--page", type=Path, help="JSON file of a run, to print as Markdown")
    parser.add_argument("--blocks", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.page:
        print("\n".join(page(json.loads(arguments.page.read_text()))))
        return
    if arguments.out is None:
        parser.error("--out or --page is needed")
    if unknown := [name for name in arguments.models if name not in MODELS]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(MODELS)}")
    table: dict[str, Any] = {"processor": processor(), "blocks": arguments.blocks, "models": {}}
    if arguments.out.exists():
        table = json.loads(arguments.out.read_text())
    for name in arguments.models or MODELS:
        if name in table["models"]:
            continue
        table["models"][name] = measured(MODELS[name], arguments.blocks)
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")
        print(name, json.dumps(table["models"][name]), file=sys.stderr)


if __name__ == "__main__":
    main()
