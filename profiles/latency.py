"""How long a device takes: by kept weights of every layer, by the work of a graph.

Two models, each fitted to a device's measurements by :mod:`profiles.fit` and each with its quality: the first is
PruneFL's, for masks; the second is for artifacts that were never measured. NumPy comes only through
:mod:`profiles.fit`, so no supervisor imports this.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiles.device import PARAMETER_LIVE_BYTES, StepLine
from profiles.fit import FitImpossible, FitQuality, LineFit, fit_line
from profiles.step_work import StepWork

_CONSTANT = "constant"
_WORK, _MOVED, _GRAPH, _PARAMETERS = "multiply-accumulates", "moved bytes", "graph size", "parameters"
_KINDS = _CONVOLUTIONS, _PADDED, _PRODUCTS = "convolutions", "padded convolutions", "matrix products"

Rows = list[tuple[dict[str, float], float]]


@dataclass(frozen=True)
class LayerTimes:
    """T(M) = c + sum over kept weights of t_l. Source: PruneFL, section IV-B.

    Attributes:
        constant_s: seconds at density 0.
        weight_s: layer -> seconds per kept weight.
        weight_error_s: layer -> its standard error, None where it cannot be said.
    """

    constant_s: float
    weight_s: Mapping[str, float]
    weight_error_s: Mapping[str, float | None]
    quality: FitQuality

    def seconds(self, kept: Mapping[str, int]) -> float:
        """Predicted for ``kept`` weights by layer.

        Raises:
            KeyError: a layer that was not measured.
        """
        return self.constant_s + sum(self.weight_s[layer] * count for layer, count in kept.items())

    def options(self, layers: Sequence[str]) -> dict[str, float | list[float]]:
        """``constant-s`` and ``layer-s`` of a run file's ``[method]``, coefficients in the order of ``layers``.

        Raises:
            KeyError: a layer that was not measured.
        """
        return {"constant-s": self.constant_s, "layer-s": [self.weight_s[layer] for layer in layers]}


def fit_layer_times(samples: Iterable[tuple[Mapping[str, int], float]]) -> LayerTimes:
    """Per-layer times from (kept weights by layer, seconds) of many masks; repeats of a mask become their median.

    Raises:
        FitImpossible: layers whose counts never changed on their own, by name, or too few masks.
    """
    rows = []
    for kept, seconds in samples:
        if _CONSTANT in kept:
            raise FitImpossible(f"a layer is called '{_CONSTANT}', which is the constant's name; rename the layer")
        rows.append(({_CONSTANT: 1.0, **{layer: float(count) for layer, count in kept.items()}}, seconds))
    fit = fit_line(rows)
    layers = [name for name in fit.coefficients if name != _CONSTANT]
    return LayerTimes(
        constant_s=fit.coefficients[_CONSTANT],
        weight_s={layer: fit.coefficients[layer] for layer in layers},
        weight_error_s={layer: fit.errors[layer] for layer in layers},
        quality=fit.quality,
    )


@dataclass(frozen=True)
class WorkSample:
    """One artifact's measured step, with what its manifest says of the work.

    Attributes:
        macs: multiply-accumulates of one forward pass of one example.
        moved_bytes: any measure of what a step reads and writes that is made alike for every artifact; its live bytes.
        parameters: elements; 0: not known.
        graph_bytes: size of the step's graph, which rises with the operations in it; 0: not known.
        work: of the whole step by kind; None: not known.
    """

    macs: int
    batch: int
    moved_bytes: int
    step_ms: float
    parameters: int = 0
    graph_bytes: int = 0
    work: StepWork | None = None


class WorkTime(StepLine, frozen=True, kw_only=True):
    """The time of steps by their work, fitted on some artifacts and asked about others; its ``threads`` mean nothing.

    Attributes:
        constant_ms: of every step; where graph sizes were fitted, what the median graph takes.
    """

    quality: FitQuality

    def line(self, threads: int, *, measured_at: float = 0.0) -> StepLine:
        """The model as a profile holds it."""
        found = {name: getattr(self, name) for name in StepLine.__struct_fields__}
        return StepLine(**found | {"threads": threads, "measured_at": measured_at})


def fit_work_time(samples: Sequence[WorkSample]) -> WorkTime:
    """The model of a device's steps from several artifacts.

    With graph sizes, parameters and work by kind it is the whole model; without the kinds, one rate for all work;
    without the others, or where they do not vary on their own, a constant, work and bytes.

    Raises:
        FitImpossible: fewer than three artifacts, or ones whose work and bytes rise together.
    """
    if samples and all(sample.graph_bytes > 0 and sample.parameters > 0 for sample in samples):
        for features in (_by_kind, _by_graph) if all(sample.work is not None for sample in samples) else (_by_graph,):
            try:
                fit = fit_line(_told_apart([(features(sample), sample.step_ms) for sample in samples]))
            except FitImpossible:
                continue
            return _work_time(fit, samples, statistics.median(sample.graph_bytes for sample in samples))
    fit = fit_line(
        [
            (
                {_CONSTANT: 1.0, _WORK: sample.batch * sample.macs / 1e9, _MOVED: sample.moved_bytes / 1e6},
                sample.step_ms,
            )
            for sample in samples
        ]
    )
    return _work_time(fit, samples)


def _by_graph(sample: WorkSample) -> dict[str, float]:
    activations = max(0, sample.moved_bytes - PARAMETER_LIVE_BYTES * sample.parameters)
    return {
        _GRAPH: sample.graph_bytes / 1e3,
        _WORK: sample.batch * sample.macs / 1e9,
        _MOVED: activations / 1e6,
        _PARAMETERS: sample.parameters / 1e6,
    }


def _by_kind(sample: WorkSample) -> dict[str, float]:
    assert sample.work is not None
    features = _by_graph(sample)
    del features[_WORK]
    done = (sample.work.convolution_macs, sample.work.padded_macs, sample.work.matrix_macs)
    return features | {kind: count / 1e9 for kind, count in zip(_KINDS, done, strict=True)}


def _told_apart(rows: Rows) -> Rows:
    """Without the columns that are 0 in every row: a device whose models have no convolution."""
    empty = {name for name in rows[0][0] if not any(features[name] for features, _ in rows)}
    return [({name: value for name, value in f.items() if name not in empty}, measured) for f, measured in rows]


def _work_time(fit: LineFit, samples: Sequence[WorkSample], graph_bytes: float = 0.0) -> WorkTime:
    """Of the usual graph's size; where work was fitted by kind, its one rate is what the samples took of it."""
    found = fit.coefficients
    kinds = {kind: found.get(kind, 0.0) for kind in _KINDS}
    rate = found.get(_WORK, 0.0)
    if any(kinds.values()):
        rates = [
            sum(kinds[kind] * _by_kind(sample)[kind] for kind in _KINDS) / (sample.batch * sample.macs / 1e9)
            for sample in samples
            if sample.macs
        ]
        rate = statistics.median(rates) if rates else 0.0
    return WorkTime(
        threads=1,
        constant_ms=found[_CONSTANT] if _CONSTANT in found else found.get(_GRAPH, 0.0) * graph_bytes / 1e3,
        gigamac_ms=rate,
        megabyte_ms=found.get(_MOVED, 0.0),
        quality=fit.quality,
        median_error=fit.quality.median_error,
        points=fit.quality.points,
        graph_kilobyte_ms=found.get(_GRAPH, 0.0),
        megaparameter_ms=found.get(_PARAMETERS, 0.0),
        convolution_gigamac_ms=kinds[_CONVOLUTIONS],
        padded_gigamac_ms=kinds[_PADDED],
        matrix_gigamac_ms=kinds[_PRODUCTS],
    )
