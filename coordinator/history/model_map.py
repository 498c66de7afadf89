"""The model as a map, from the cuts and orders of the updates that committed rounds count.

A round's updates are grouped by level and artifact: those have the same tensors, so that one order of each says which
were trained. Rounds that were read are kept, and never read again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coordinator.history.assignments import read_parts
from coordinator.history.records import Layer, LayerDevice, LayerLevel, ModelMap, TrainedInRound
from coordinator.ledger.read_only import ReadOnlyLedger
from coordinator.submodels.record import LayerCut, cut_from_json
from edge.contracts.packing import KEPT

AT_ONCE = 4
"""Rounds that are read in one query: of thousands of devices each takes a while."""

_UPDATES = (
    "SELECT c.round, a.round, a.attempt, a.level, a.artifact_digest, a.device, a.assignment_id "
    "FROM contributions c JOIN assignments a USING (assignment_id) "
    "JOIN rounds r ON r.round = c.round AND r.attempt = c.attempt "
    "WHERE r.state = 'committed' AND c.round BETWEEN :first AND :last"
)


class _Tally(msgspec.Struct):
    updates: int = 0
    last_round: int = -1

    def add(self, round_index: int, updates: int = 1) -> None:
        self.updates += updates
        self.last_round = max(self.last_round, round_index)


class ModelReader:
    """Reads the map of one run, further with each call."""

    def __init__(self, ledger: ReadOnlyLedger) -> None:
        self._ledger = ledger
        self._through = -1
        self._places: dict[str, int] = {}
        self._tensors: list[dict[str, None]] = []
        self._holds: list[dict[str, str]] = []
        self._rounds: list[TrainedInRound] = []
        self._shapes: dict[tuple[int, int, str, str], tuple[int, ...]] = {}
        self._by_device: dict[tuple[tuple[int, ...], str, str], _Tally] = defaultdict(_Tally)

    def read(self, budget_s: float) -> ModelMap:
        """The map with as many further rounds as ``budget_s`` allows, at least one look at the ledger."""
        last = self._ledger.one("SELECT COALESCE(MAX(round), -1) FROM rounds WHERE state = 'committed'")[0]
        began = time.monotonic()
        while self._through < last:
            self._read_rounds(self._through + 1, min(last, self._through + AT_ONCE))
            if time.monotonic() - began > budget_s:
                break
        return self._map(is_complete=self._through >= last)

    def devices_of(self, path: str) -> tuple[LayerDevice, ...]:
        """Who trained the layer at ``path``, by id."""
        place = self._places.get(path)
        found: dict[str, _Tally] = defaultdict(_Tally)
        for (layers, _, device), tally in self._by_device.items():
            if place in layers:
                found[device].add(tally.last_round, tally.updates)
        return tuple(
            LayerDevice(device=device, updates=tally.updates, last_round=tally.last_round)
            for device, tally in sorted(found.items())
        )

    def _read_rounds(self, first: int, last: int) -> None:
        rows = self._ledger.all(_UPDATES, {"first": first, "last": last})
        counts: dict[tuple[int, str, tuple[int, ...]], int] = defaultdict(int)
        for counted_in, of_round, attempt, level, digest, device, assignment_id in rows:
            key = (of_round, attempt, level, digest)
            layers = self._shapes.get(key)
            if layers is None:
                layers = self._shapes[key] = self._shape(assignment_id, level)
            counts[counted_in, level, layers] += 1
            self._by_device[layers, level, device].add(counted_in)
        self._rounds += [
            TrainedInRound(round=round_index, level=level, updates=count, layers=layers)
            for (round_index, level, layers), count in sorted(counts.items())
        ]
        self._through = last

    def _shape(self, assignment_id: str, level: str) -> tuple[int, ...]:
        """Positions of the layers that an assignment trained; layers and how they are held are noted on the way."""
        cut_json, order = self._ledger.one(
            "SELECT cut, work_order FROM assignments WHERE assignment_id = :id", {"id": assignment_id}
        )
        cut = cut_from_json(msgspec.json.decode(cut_json))
        trained: set[int] = set()
        for name in read_parts(order).upload:
            tensor = name.removesuffix(KEPT)
            if "#" in tensor:  # of the optimizer, not of the model
                continue
            place = self._place(_layer_of(tensor, cut))
            trained.add(place)
            self._tensors[place][tensor] = None
        for path, entry in cut.items():
            if entry.frozen and path:
                self._place(path)
        for path, place in self._places.items():
            if place in trained or path in cut:
                self._holds[place][level] = _holds(cut.get(path))
        return tuple(sorted(trained))

    def _place(self, path: str) -> int:
        if path not in self._places:
            self._places[path] = len(self._tensors)
            self._tensors.append({})
            self._holds.append({})
        return self._places[path]

    def _map(self, *, is_complete: bool) -> ModelMap:
        count = len(self._tensors)
        levels: list[dict[str, _Tally]] = [defaultdict(_Tally) for _ in range(count)]
        devices: list[dict[str, set[str]]] = [defaultdict(set) for _ in range(count)]
        for entry in self._rounds:
            for place in entry.layers:
                levels[place][entry.level].add(entry.round, entry.updates)
        for layers, level, device in self._by_device:
            for place in layers:
                devices[place][level].add(device)
        return ModelMap(
            layers=tuple(
                _layer(path, tuple(self._tensors[place]), self._holds[place], levels[place], devices[place])
                for path, place in self._places.items()
            ),
            rounds=tuple(self._rounds),
            through_round=self._through,
            is_complete=is_complete,
        )


def _layer(
    path: str,
    tensors: tuple[str, ...],
    holds: Mapping[str, str],
    levels: Mapping[str, _Tally],
    devices: Mapping[str, set[str]],
) -> Layer:
    found = {
        level: LayerLevel(
            holds=holds[level],
            updates=levels[level].updates if level in levels else 0,
            devices=len(devices.get(level, ())),
            last_round=levels[level].last_round if level in levels else -1,
        )
        for level in sorted(holds)
    }
    return Layer(
        path=path,
        tensors=tensors,
        updates=sum(entry.updates for entry in found.values()),
        devices=len(set().union(*devices.values())),
        last_round=max((entry.last_round for entry in found.values()), default=-1),
        levels=found,
    )


def _layer_of(tensor: str, cut: Mapping[str, LayerCut]) -> str:
    """The path of the layer that a tensor is of: ``fc1`` of ``fc1.weight`` and of the factor ``fc1.u``."""
    if tensor in cut:
        return tensor
    return tensor.rpartition(".")[0] or tensor


def _holds(entry: LayerCut | None) -> str:
    """In words, what a device holds of a layer."""
    if entry is None:
        return "whole"
    if entry.frozen:
        return "frozen"
    parts: list[str] = []
    if entry.factor is not None:
        parts.append(f"rank {entry.factor.rank}")
    if entry.out_idx is not None:
        parts.append(f"{_count(entry.out_idx)} of its outputs")
    elif entry.in_idx is not None or entry.read_idx is not None:
        parts.append(f"{_count(entry.in_idx or entry.read_idx or ())} of its inputs")
    if entry.mask:
        parts.append("masked")
    if entry.added is not None:
        parts.append(f"with {entry.added.form}")
    return ", ".join(parts) or "whole"


def _count(indices: Sequence[Any]) -> int:
    return len(indices)
