"""A step that reads kept features beside the same step without them, in one run: blocks alternate, orders are equal."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.cli.bench_device import EXAMPLE_BATCHES, BenchInputs, exported
from coordinator.cli.bench_sides import DeviceSide
from coordinator.cli.command import parse_problem

if TYPE_CHECKING:
    from coordinator.cli.model_arguments import ModelArguments


class PlainSide:
    """A trainer with the artifact that keeps no features; a context manager that ends it.

    Args:
        device: the side with features, which has carried out no order yet.

    Raises:
        ConfigError: the cut has no frozen blocks below those it trains; also ExportRefused, ParityError.
    """

    def __init__(
        self, arguments: ModelArguments, inputs: BenchInputs, device: DeviceSide, folder: Path, threads: int
    ) -> None:
        if not inputs.reads_features:
            frozen = f"cut '{arguments.cut}'" if arguments.cut else f"--freeze {arguments.freeze}"
            raise parse_problem(
                "--cached", f"{frozen} trains the first layer; freeze some: --freeze 4, or of a language model depths=4"
            )
        _, manifest = exported(replace(arguments, cached_features=""), inputs.manifest.runtime, folder / "plain")
        self._device = device
        self._plain = DeviceSide(replace(inputs, manifest=manifest, artifact=folder / "plain"), threads)
        self._cpu_ms: list[float] = []
        self._step_ms: list[float] = []
        self._updates: list[bool] = []
        self._first_cpu_ms = 0.0

    def __enter__(self) -> PlainSide:
        return self

    def __exit__(self, *_: object) -> None:
        self._plain.__exit__()

    def first_epoch(self) -> None:
        """Let the other side see every example once, and this one do the same."""
        self._device.block(EXAMPLE_BATCHES), self._plain.block(EXAMPLE_BATCHES)
        self._first_cpu_ms = self._device.cpu_ms
        self._updates.append(self._device.update == self._plain.update)

    def block(self) -> None:
        """The order that the other side has just carried out."""
        self._step_ms.append(self._plain.block())
        self._cpu_ms.append(self._plain.cpu_ms)
        self._updates.append(self._device.update == self._plain.update)

    def values(self, cpu_ms: list[float], features: str) -> dict[str, Any]:
        """Fields of the bench.

        Args:
            cpu_ms: of the other side's blocks.
            features: the type they are kept in.
        """
        plain = statistics.median(self._cpu_ms)
        return {
            "cached": features,
            "uncached_step_ms": round(statistics.median(self._step_ms), 3),
            "uncached_cpu_ms": round(plain, 3),
            "ratio_to_uncached": round(statistics.median(cpu_ms) / plain, 3),
            "first_epoch_cpu_ms": round(self._first_cpu_ms, 3),
            "same_updates": all(self._updates),
        }
