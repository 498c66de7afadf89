"""The artifacts that predictions are held against measurements on: models, cuts, runtimes and batches.

A point of the list is one artifact; :func:`export_points` makes those that a folder lacks. Models are held out one at a
time, with all their cuts and batches, so each runtime needs several models and every model more than one size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

POINT_FILE = "point.json"

# Model -> (cut, blocks frozen, batches). A cut is written as on the command line; "" is the whole model.
SHAPES: dict[str, tuple[tuple[str, int, tuple[int, ...]], ...]] = {
    "mlp": (("", 0, (16, 64)), ("fedhm:4", 0, (32,)), ("heterofl:0.5", 0, (32,))),
    "resnet8": (("", 0, (8, 32)), ("prism:0.4", 0, (32,)), ("", 2, (32,))),
    "resnet20": (
        ("", 0, (16, 32)),
        ("fedhm:2", 0, (32,)),
        ("heterofl:0.5", 0, (32,)),
        ("prism:0.6", 0, (16,)),
        ("", 6, (32,)),
    ),
    "conv2": (("", 0, (16,)), ("heterofl:0.5", 0, (8, 32)), ("fedhm:4", 0, (16,))),
    "vit": (("", 0, (8, 16)), ("prism:0.4", 0, (16,)), ("", 2, (16,))),
    "depthwise": (("", 0, (8, 24)), ("heterofl:0.5", 0, (32,)), ("", 3, (24,))),
    "lstm": (("", 0, (8, 32)), ("fedhm:2", 0, (16,))),
    "resnet18": (("prism:0.2", 0, (32,)), ("heterofl:0.35", 0, (16,)), ("", 6, (8,)), ("", 0, (8,))),
}

# ONNX Runtime Training trains whole models; the step's form is another, so it gets a shorter list.
TRAINING_SHAPES: dict[str, tuple[tuple[str, int, tuple[int, ...]], ...]] = {
    "mlp": (("", 0, (16, 64)),),
    "resnet8": (("", 0, (16, 32)),),
    "resnet20": (("", 0, (32,)), ("heterofl:0.5", 0, (16,))),
    "conv2": (("", 0, (16,)), ("heterofl:0.5", 0, (32,))),
    "vit": (("", 0, (8, 16)),),
    "depthwise": (("", 0, (16,)),),
}

RUNTIMES = {"onnxruntime": SHAPES, "executorch": SHAPES, "onnxruntime_training": TRAINING_SHAPES}


@dataclass(frozen=True)
class Point:
    """One artifact.

    Attributes:
        cut: ``method:level`` or empty.
        freeze: leading blocks whose weights are not trained.
    """

    model: str
    cut: str
    freeze: int
    runtime: str
    batch: int

    @property
    def folder(self) -> str:
        """Its name below the folder of all artifacts."""
        shape = (self.cut or "whole").replace(":", "-") + (f"-freeze{self.freeze}" if self.freeze else "")
        return f"{self.model}-{shape}-{self.runtime}-b{self.batch}"


def all_points() -> Iterator[Point]:
    """The list, small models first so that a run that is ended early has some of each runtime."""
    for model in SHAPES:
        for runtime, shapes in RUNTIMES.items():
            for cut, freeze, batches in shapes.get(model, ()):
                for batch in batches:
                    yield Point(model, cut, freeze, runtime, batch)


def read_points(folder: Path) -> list[tuple[Point, Path]]:
    """Points whose artifacts are in ``folder``, with the artifact's folder, by name."""
    found = []
    for path in sorted(folder.glob(f"*/{POINT_FILE}")):
        found.append((Point(**json.loads(path.read_text(encoding="utf-8"))), path.parent / "artifact"))
    return found


def export_points(folder: Path) -> int:
    """Export what ``folder`` lacks, parity gate and all; how many were refused, with reasons on stderr."""
    from coordinator.cli.model_arguments import ModelArguments
    from edge.contracts.errors import ApportionError
    from export.bundle import export_artifact

    refused = 0
    for point in all_points():
        place = folder / point.folder
        if (place / POINT_FILE).exists():
            continue
        optimizer = "adamw" if point.runtime == "onnxruntime_training" else "sgd"
        try:
            prepared = ModelArguments(
                point.model, (), 0, point.batch, point.freeze, point.cut, optimizer=optimizer
            ).prepare()
            export_artifact(
                prepared.module,
                prepared.step,
                place / "artifact",
                build=prepared.build,
                classes=prepared.class_names,
                runtime=point.runtime,
            )
        except ApportionError as error:
            refused += 1
            print(f"{point.folder}: {error}", file=sys.stderr)
            continue
        (place / POINT_FILE).write_text(json.dumps(asdict(point)), encoding="utf-8")
        print(f"{point.folder}", file=sys.stderr)
    return refused
