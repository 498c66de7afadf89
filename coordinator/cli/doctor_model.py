"""``apportion doctor MODEL``: layers against runtimes, alike ones in one row; :mod:`.doctor_table` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.cli.model_arguments import ModelArguments
    from export.layer_inventory import Layer, Value
    from export.layer_support import LayerSupport, Verdict

MODULE_ITSELF = "the module itself"


@dataclass(frozen=True)
class Row:
    """Layers that are set up alike, run on the same shapes and fare alike everywhere.

    Attributes:
        paths: in calling order.
        kind: their type.
        settings: their type's own description of how they are set up.
        takes: shapes of the tensors they take, N being the batch.
        gives: shapes of those they give.
        parameters: of all of them together.
        operations: what a layer with layers inside does besides running those.
        verdicts: runtime -> what it makes of them.
    """

    paths: tuple[str, ...]
    kind: str
    settings: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    parameters: int
    operations: tuple[str, ...]
    verdicts: dict[str, Verdict]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "layers": list(self.paths),
            "type": self.kind,
            "settings": self.settings,
            "input": list(self.takes),
            "output": list(self.gives),
            "parameters": self.parameters,
            "operations": list(self.operations),
            "runtimes": {
                name: {"state": v.state, "passes": list(v.passes), "reason": v.reason, "instead": v.instead}
                for name, v in self.verdicts.items()
            },
        }


@dataclass(frozen=True)
class ModelReport:
    """What the doctor says of one model.

    Attributes:
        trains: runtime -> number of layers that it trains.
        layers: how many there are.
        missing: runtime -> what this machine lacks to say anything about it.
        passes: what each pass named in a row does.
        unreached: trained parameters that no gradient reaches.
    """

    model: str
    rows: tuple[Row, ...]
    trains: dict[str, int]
    layers: int
    missing: dict[str, str]
    passes: dict[str, str]
    unreached: tuple[str, ...]

    @property
    def trained_by(self) -> list[str]:
        """Runtimes that train the whole model."""
        return [name for name, count in self.trains.items() if count == self.layers]

    def refusals(self) -> dict[str, list[str]]:
        """One sentence per row and reason -> runtimes for which it holds."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            for runtime, verdict in row.verdicts.items():
                if not verdict.is_trained:
                    found.setdefault(refusal(row, verdict), []).append(runtime)
        return found

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        runtimes: dict[str, Any] = {
            name: {"trains": count == self.layers, "layers_trained": count, "missing": ""}
            for name, count in self.trains.items()
        }
        for name, reason in self.missing.items():
            runtimes[name] = {"trains": False, "layers_trained": None, "missing": reason}
        return {
            "model": self.model,
            "layers": self.layers,
            "trained_by": self.trained_by,
            "runtimes": runtimes,
            "rows": [row.as_dict() for row in self.rows],
            "passes": self.passes,
            "no_gradient_reaches": list(self.unreached),
        }


def model_report(arguments: ModelArguments) -> ModelReport:
    """What every known runtime would make of a model's layers; nothing is exported.

    Raises:
        ConfigError: an unknown model or cut.
        ExportRefused: the model does not run on its own input.
    """
    from edge.runtimes import KNOWN
    from export.layer_support import layer_support

    prepared = arguments.prepare()
    support = layer_support(prepared.module, prepared.step, list(KNOWN))
    return ModelReport(
        arguments.model,
        _rows(support),
        {name: sum(v.is_trained for v in rows.values()) for name, rows in support.verdicts.items()},
        len(support.layers),
        support.missing,
        support.passes,
        support.unreached,
    )


def refusal(row: Row, verdict: Verdict) -> str:
    """Layer, type, reason and what to use in place of it."""
    advice = f"; use {verdict.instead} instead" if verdict.instead else ""
    named = "" if row.paths[0] == MODULE_ITSELF else "layer "
    return f"{named}{layer_name(row)} ({row.kind}): {verdict.reason}{advice}"


def layer_name(row: Row) -> str:
    """The first layer of a row, and how many more there are."""
    more = f" (+{len(row.paths) - 1})" if len(row.paths) > 1 else ""
    return f"{row.paths[0]}{more}"


def _rows(support: LayerSupport) -> tuple[Row, ...]:
    alike: dict[Any, list[str]] = {}
    for path, layer in support.layers.items():
        verdicts = tuple(rows[path] for rows in support.verdicts.values())
        own = support.operations.get(path, ())
        key = (layer.kind, layer.settings if layer.is_leaf else "", layer.takes, layer.gives, own, verdicts)
        alike.setdefault(key, []).append(path)
    return tuple(_row(paths, support) for paths in alike.values())


def _row(paths: Iterable[str], support: LayerSupport) -> Row:
    layers: list[Layer] = [support.layers[path] for path in paths]
    first = layers[0]
    return Row(
        tuple(layer.path or MODULE_ITSELF for layer in layers),
        first.kind,
        first.settings,
        _shapes(first.takes),
        _shapes(first.gives),
        sum(layer.parameters for layer in layers),
        support.operations.get(first.path, ()),
        {name: rows[first.path] for name, rows in support.verdicts.items()},
    )


def _shapes(values: Iterable[Value | None]) -> tuple[str, ...]:
    return tuple("x".join(str(size) for size in value.shape) for value in values if value is not None)
