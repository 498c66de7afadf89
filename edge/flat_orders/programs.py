"""The programs of an order's steps in flat form: what inputs are fed, what becomes of outputs, how values move."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from edge.contracts.manifest import ArtifactManifest, GraphOutput, Program
from edge.contracts.packing import MASK
from edge.contracts.plan import WorkOrder
from edge.contracts.tensors import BATCH, FEATURES, GRADIENT_SUM, TensorSpec, is_carried
from edge.flat_orders.state import State
from edge.flat_orders.writing import KINDS, Feed, FlatWriter, Result, Unable
from edge.runtimes.micro_batches import ACCUMULATE
from edge.runtimes.update_rule import FILE_NAME, RULE_ROLES, STEP_SLOT, UpdateRule

_GRADIENT, _NEXT = "grad:", "next:"
_STATS_MOMENTUM = "stats_momentum"
_OPTIMIZERS = {"sgd": 1, "adam": 2, "adamw": 3}
_NO_OPTIMIZER = 0
_METRICS = {"correct": "accuracy"}
"""Scalars that a report knows by another name."""


class Programs:
    """Programs and scalars by number, numbered as they are asked for."""

    def __init__(self, order: WorkOrder, manifest: ArtifactManifest, state: State, files: Mapping[str, str]) -> None:
        self._order, self._manifest, self._state, self._files = order, manifest, state, files
        self._specs = {spec.name: spec for spec in manifest.tensors}
        self._rule = UpdateRule.from_bytes(Path(files[FILE_NAME]).read_bytes())
        self._numbers: dict[str, int] = {}
        self._scalars: dict[str, int] = {}

    def number(self, program: Program) -> int:
        """Of ``program``."""
        return self._numbers.setdefault(program.name, len(self._numbers))

    def read_features(self) -> bool:
        """Whether a program that has a number reads features in place of the input."""
        taken = {
            name for program in self._manifest.programs if program.name in self._numbers for name in program.inputs
        }
        return any(self._specs[name].role == "features" for name in taken)

    def write(self, writer: FlatWriter) -> None:
        """Every program that has a number."""
        writer.each(self._numbers, lambda name: self._write(writer, self._manifest.program(name)))

    def write_scalars(self, writer: FlatWriter) -> None:
        """Loss and metrics, after the programs that give them."""

        def write(name: str) -> None:
            spec = self._specs[name]
            writer.text(name, _METRICS.get(name, name))
            writer.integer(spec.role == "metric" and spec.dtype in ("int64", "int32", "uint8"))

        writer.each(self._scalars, write)

    def _write(self, writer: FlatWriter, program: Program) -> None:
        is_rule_alone = program.file == FILE_NAME
        digests = {file.name: file.sha256 for file in self._manifest.files}
        writer.text(program.name)
        writer.text("" if is_rule_alone else self._files[program.file])
        writer.text("" if is_rule_alone else digests[program.file])
        writer.integer(program.batch or 0, self._manifest.batch)
        taken = [] if is_rule_alone else [self._specs[name] for name in program.inputs]
        writer.each(
            [spec for spec in taken if spec.role not in RULE_ROLES], lambda spec: self._write_input(writer, spec)
        )
        writer.each(
            [] if is_rule_alone else program.outputs, lambda output: self._write_output(writer, program, output)
        )
        self._write_rule(writer, program)

    def _write_input(self, writer: FlatWriter, spec: TensorSpec) -> None:
        place, value, name = -1, 0.0, ""
        if is_carried(spec):
            feed, place = Feed.STATE, self._state.number(spec.name)
        elif (spec.role, spec.name) == ("input", "input"):
            feed = Feed.INPUT
        elif (spec.role, spec.name, spec.dtype) == ("target", "target", "int64"):
            feed = Feed.TARGET
        elif (spec.role, spec.dtype) == ("features", "float32"):
            feed = Feed.FEATURES
        elif spec.role == "label_mask":
            feed = Feed.LABEL_MASK
        elif spec.role == "hyper" and spec.name == _STATS_MOMENTUM:
            feed = Feed.COUNTED
        elif spec.role == "hyper":
            feed, value = Feed.FIXED, self._hyper(spec)
        elif spec.role == "draw" and spec.dtype in ("bool", "float32"):
            feed, value, name = Feed.DRAW, float(int(spec.probability * 2.0**24 + 0.5)), spec.name
        else:
            raise Unable(f"a program takes {spec.role} '{spec.name}' of {spec.dtype}")
        writer.integer(feed, place, KINDS[spec.dtype])
        writer.integers([-1 if size == BATCH else int(size) for size in spec.shape])
        writer.real(value)
        writer.text(name)

    def _write_output(self, writer: FlatWriter, program: Program, output: GraphOutput) -> None:
        result, place = Result.UNUSED, -1
        if output.name.startswith(_GRADIENT) and program.name == ACCUMULATE:
            result, place = Result.SUM, self._state.number(output.name.removeprefix(_GRADIENT) + GRADIENT_SUM)
        elif output.name.startswith(_GRADIENT):
            result = Result.GRADIENT
        elif output.name.startswith(_NEXT):
            result, place = Result.NEXT, self._state.number(output.name.removeprefix(_NEXT))
        elif output.name == FEATURES:
            result = Result.FEATURES
        elif output.name in self._specs and self._specs[output.tensor].shape == ():
            result, place = Result.SCALAR, self._scalars.setdefault(output.name, len(self._scalars))
        writer.integer(result, place)

    def _write_rule(self, writer: FlatWriter, program: Program) -> None:
        rule, hyper = self._rule, self._hypers(program)
        if program.file == FILE_NAME:
            moved = [n.removesuffix(GRADIENT_SUM) for n in program.inputs if n.endswith(GRADIENT_SUM)]
        elif program.name == ACCUMULATE:
            moved = []
        else:
            moved = [o.name.removeprefix(_GRADIENT) for o in program.outputs if o.name.startswith(_GRADIENT)]
        is_adam = rule.kind != "sgd"
        writer.integer(_OPTIMIZERS[rule.kind] if moved else _NO_OPTIMIZER, rule.nesterov, "clip_norm" in hyper)
        writer.real(*(hyper.get(name, 0.0) for name in ("momentum", "beta1", "beta2", "eps", "clip_norm")))
        writer.integer(self._state.number(STEP_SLOT) if moved and is_adam else -1)
        rates = rule.rates(moved, hyper) if moved else {}

        def write(name: str) -> None:
            there = self._state.number_if_there
            writer.integer(
                self._state.number(name),
                -1 if is_adam else there(f"{name}#momentum"),
                self._state.number(f"{name}#exp_avg") if is_adam else -1,
                self._state.number(f"{name}#exp_avg_sq") if is_adam else -1,
                there(f"{name}#squared_gradient"),
                there(name + MASK),
                there(name + GRADIENT_SUM) if program.file == FILE_NAME else -1,
            )
            writer.real(*rates[name])

        writer.each(moved, write)

    def _hypers(self, program: Program) -> dict[str, float]:
        specs = [self._specs[name] for name in program.inputs]
        return {s.name: self._hyper(s) for s in specs if s.role == "hyper" and s.name != _STATS_MOMENTUM}

    def _hyper(self, spec: TensorSpec) -> float:
        """The value that a step is given, rounded as the input's type does."""
        if spec.name not in self._order.hyper:
            raise Unable(f"the order gives no hyper-parameter '{spec.name}'")
        value = self._order.hyper[spec.name]
        if spec.dtype == "float32":
            return float(struct.unpack("<f", struct.pack("<f", value))[0])
        if spec.dtype == "int64":
            return float(int(value))
        raise Unable(f"hyper-parameter '{spec.name}' is {spec.dtype}")
