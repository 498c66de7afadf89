"""How long a device takes: by kept weights of every layer, by batch and threads, by the work of a graph.

Three models, each fitted to a device's measurements by :mod:`profiles.fit` and each with its quality. Which one to use
is a matter of what is asked: the first is PruneFL's, for masks; the second for one artifact; the third for artifacts
that were never measured. Needs NumPy for fitting only through :mod:`profiles.fit`, so no supervisor imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiles.fit import FitImpossible, FitQuality, LineFit, fit_line

_CONSTANT, _SHARED = "constant", "batch / threads"


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
    """

    macs: int
    batch: int
    moved_bytes: int
    step_ms: float


@dataclass(frozen=True)
class WorkTime:
    """step_ms = constant + batch x macs / 10^9 x gigamac_ms + moved_bytes / 10^6 x megabyte_ms.

    For one device, runtime and number of threads; fitted on some artifacts, asked about others.
    """

    constant_ms: float
    gigamac_ms: float
    megabyte_ms: float
    quality: FitQuality

    def step_ms(self, *, macs: int, batch: int, moved_bytes: int) -> float:
        """Predicted for an artifact of that work."""
        return self.constant_ms + batch * macs / 1e9 * self.gigamac_ms + moved_bytes / 1e6 * self.megabyte_ms


def fit_work_time(samples: Sequence[WorkSample]) -> WorkTime:
    """The model of a device's steps from several artifacts.

    Raises:
        FitImpossible: fewer than three artifacts, or ones whose work and bytes rise together.
    """
    fit: LineFit = fit_line(
        [
            (
                {
                    _CONSTANT: 1.0,
                    "multiply-accumulates": sample.batch * sample.macs / 1e9,
                    "moved bytes": sample.moved_bytes / 1e6,
                },
                sample.step_ms,
            )
            for sample in samples
        ]
    )
    return WorkTime(
        constant_ms=fit.coefficients[_CONSTANT],
        gigamac_ms=fit.coefficients["multiply-accumulates"],
        megabyte_ms=fit.coefficients["moved bytes"],
        quality=fit.quality,
    )
