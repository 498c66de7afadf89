"""How long a device takes: by kept weights of every layer, by batch and threads, by the work of a graph.

Three models, each fitted to a device's measurements by :mod:`profiles.fit` and each with its quality. Which one to use
is a matter of what is asked: the first is PruneFL's, for masks; the second for one artifact; the third for artifacts
that were never measured. Needs NumPy for fitting only through :mod:`profiles.fit`, so no supervisor imports it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiles.device import PARAMETER_LIVE_BYTES, StepLine
from profiles.fit import FitImpossible, FitQuality, LineFit, fit_line
from profiles.step_work import StepWork

_CONSTANT, _SHARED = "constant", "batch / threads"
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
class StepSample:
    """One measured step time; give the median of its steps or every block of them."""

    batch: int
    threads: int
    step_ms: float


@dataclass(frozen=True)
class StepTime:
    """step_ms = constant + batch (serial + parallel / threads) + (threads - 1) overhead.

    Attributes:
        constant_ms: of every step: dispatch, the optimizer.
        serial_ms, parallel_ms: per example, the part that one thread does and the part that all share; the latter is
            negative where more threads make every example slower (measured: two threads on two busy cores).
        overhead_ms: of every thread beyond the first; larger than what it saves where memory is the limit.
        batches, threads: smallest and largest that were measured.
    """

    constant_ms: float
    serial_ms: float
    parallel_ms: float
    overhead_ms: float
    batches: tuple[int, int]
    threads: tuple[int, int]
    quality: FitQuality

    def step_ms(self, batch: int, threads: int = 1) -> float:
        """Predicted; beyond what was measured it is a guess, which :meth:`covers` tells.

        Raises:
            FitImpossible: another number of threads, and only one number was measured.
        """
        if self.threads[0] == self.threads[1] != threads:
            raise FitImpossible(
                f"{threads} threads: only {self.threads[0]} was measured; measure a step with {threads}"
            )
        shared = batch * (self.serial_ms + self.parallel_ms / threads)
        return self.constant_ms + shared + (threads - 1) * self.overhead_ms

    def covers(self, batch: int, threads: int = 1) -> bool:
        """Whether both lie within what was measured."""
        return self.batches[0] <= batch <= self.batches[1] and self.threads[0] <= threads <= self.threads[1]

    def fastest_threads(self, batch: int, at_most: int) -> int:
        """The measured-for number of threads with the shortest predicted step, the smallest of equals."""
        low, high = self.threads
        return min(range(low, max(low, min(high, at_most)) + 1), key=lambda count: self.step_ms(batch, count))


def fit_step_time(samples: Sequence[StepSample]) -> StepTime:
    """The model of one artifact's steps on one device.

    With one number of threads there is no telling what threads would share: everything per example counts as serial.

    Raises:
        FitImpossible: fewer than two batch sizes, or too few settings for as many threads as were used.
    """
    if not samples or min(sample.batch for sample in samples) < 1 or min(sample.threads for sample in samples) < 1:
        raise FitImpossible("step times need a batch and threads of at least 1; measure some")
    batches, threads = [sample.batch for sample in samples], [sample.threads for sample in samples]
    has_threads = len(set(threads)) > 1
    points = [(_step_features(sample, has_threads), sample.step_ms) for sample in samples]
    fit = fit_line(points, signed=(_SHARED,))
    return StepTime(
        constant_ms=fit.coefficients[_CONSTANT],
        serial_ms=fit.coefficients["batch"],
        parallel_ms=fit.coefficients.get(_SHARED, 0.0),
        overhead_ms=fit.coefficients.get("threads - 1", 0.0),
        batches=(min(batches), max(batches)),
        threads=(min(threads), max(threads)),
        quality=fit.quality,
    )


def _step_features(sample: StepSample, has_threads: bool) -> dict[str, float]:
    features = {_CONSTANT: 1.0, "batch": float(sample.batch)}
    if has_threads:
        features |= {_SHARED: sample.batch / sample.threads, "threads - 1": sample.threads - 1.0}
    return features


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


@dataclass(frozen=True)
class WorkTime:
    """The time of steps by their work, as :class:`profiles.device.StepLine` adds it up.

    For one device, runtime and number of threads; fitted on some artifacts, asked about others.

    Attributes:
        constant_ms: of every step; where graph sizes were fitted, what the median graph takes.
    """

    constant_ms: float
    gigamac_ms: float
    megabyte_ms: float
    quality: FitQuality
    graph_kilobyte_ms: float = 0.0
    megaparameter_ms: float = 0.0
    convolution_gigamac_ms: float = 0.0
    padded_gigamac_ms: float = 0.0
    matrix_gigamac_ms: float = 0.0

    def step_ms(
        self,
        *,
        macs: int,
        batch: int,
        moved_bytes: int,
        parameters: int = 0,
        graph_bytes: int = 0,
        work: StepWork | None = None,
    ) -> float:
        """Predicted for an artifact of that work."""
        return self.line(1).step_ms(
            macs=macs,
            batch=batch,
            live_bytes=moved_bytes,
            parameters=parameters,
            graph_bytes=graph_bytes,
            work=work,
        )

    def line(self, threads: int, *, measured_at: float = 0.0) -> StepLine:
        """The model as a profile holds it."""
        return StepLine(
            threads=threads,
            constant_ms=self.constant_ms,
            gigamac_ms=self.gigamac_ms,
            megabyte_ms=self.megabyte_ms,
            median_error=self.quality.median_error,
            points=self.quality.points,
            measured_at=measured_at,
            graph_kilobyte_ms=self.graph_kilobyte_ms,
            megaparameter_ms=self.megaparameter_ms,
            convolution_gigamac_ms=self.convolution_gigamac_ms,
            padded_gigamac_ms=self.padded_gigamac_ms,
            matrix_gigamac_ms=self.matrix_gigamac_ms,
        )


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
        constant_ms=found[_CONSTANT] if _CONSTANT in found else found.get(_GRAPH, 0.0) * graph_bytes / 1e3,
        gigamac_ms=rate,
        megabyte_ms=found.get(_MOVED, 0.0),
        quality=fit.quality,
        graph_kilobyte_ms=found.get(_GRAPH, 0.0),
        megaparameter_ms=found.get(_PARAMETERS, 0.0),
        convolution_gigamac_ms=kinds[_CONVOLUTIONS],
        padded_gigamac_ms=kinds[_PADDED],
        matrix_gigamac_ms=kinds[_PRODUCTS],
    )
