"""What devices measured so far, as a placement uses it: factors on predictions, and steps that are not given again.

Two kinds of evidence. A *setback* is a step that took more memory than its device has: the device is never given that
artifact again, and every other one for the runtime is expected to grow by as much more as that one did. Setbacks are in
the ledger and always used, so that a run that is resumed plans as one that was not interrupted. *Measurements* of steps
that went well correct predictions only with ``[planner] adapt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.ledger.records import Measurement, Setback
from coordinator.planning.prediction import MB, expected_growth, growth_of
from edge.contracts.manifest import ArtifactManifest
from profiles.device import DeviceProfile
from profiles.memory import CORRECTION_RANGE, fit_correction


@dataclass(frozen=True)
class DeviceHistory:
    """One device's evidence.

    Attributes:
        setbacks: export key -> what happened with that artifact.
        forced: runtime -> how much more than predicted the steps took that failed, at least 1.
        own: export key -> measured over predicted growth of that artifact here.
        others: export key -> the largest that other devices measured for it.
        usual: runtime -> the largest that this device measured for any artifact.
    """

    setbacks: Mapping[str, str] = field(default_factory=dict)
    forced: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)

    def setback(self, key: str) -> str:
        """What happened when this device trained the artifact; empty when nothing did."""
        return self.setbacks.get(key, "")

    def correction(self, runtime: str, key: str) -> float:
        """The factor on the growth of an artifact: what was measured for it here, else the most there is reason for."""
        if key in self.own:
            return self.own[key]
        learned = [found for found in (self.others.get(key), self.usual.get(runtime)) if found is not None]
        return max([*learned, self.forced.get(runtime, 0.0)]) or 1.0

    def usual_correction(self, runtime: str) -> float:
        """The least factor that an artifact for the runtime may get; for artifacts that do not exist yet."""
        return max(self.usual.get(runtime, 0.0), self.forced.get(runtime, 0.0)) or 1.0


NOTHING = DeviceHistory()


FEW, ALONE = 3, 1.5
"""From so many other devices on the largest measured peak is left out; fewer make a prediction at most this larger."""


class History:
    """A run's evidence, read once for a plan.

    Args:
        profiles: the run's snapshot.
        manifest: of an artifact by its manifest's digest; None where it is gone.
        manifest_of_key: of an artifact by its export key.
    """

    def __init__(
        self,
        *,
        setbacks: Iterable[Setback],
        measurements: Iterable[Measurement],
        profiles: Mapping[str, DeviceProfile],
        manifest: Callable[[str], ArtifactManifest | None],
        manifest_of_key: Callable[[str], ArtifactManifest | None],
    ) -> None:
        self._setbacks = [(entry, found) for entry in setbacks if (found := manifest(entry.artifact_digest))]
        self._profiles = profiles
        self._ratios: list[tuple[str, ArtifactManifest, tuple[int, int]]] = []
        for measured in measurements:
            found, profile = manifest_of_key(measured.export_key), profiles.get(measured.device)
            if found is not None and profile is not None:
                sample = _sample(profile, found, measured.measured_peak_bytes)
                self._ratios.append((measured.device, found, sample))

    def of(self, profile: DeviceProfile) -> DeviceHistory:
        """What it says of one device."""
        device = profile.device
        setbacks: dict[str, str] = {}
        forced: dict[str, float] = {}
        for entry, manifest in self._setbacks:
            if entry.device != device:
                continue
            setbacks[manifest.export_key] = describe_setback(entry)
            # A process that was killed had not reached its peak: at least the limit was needed.
            needed = max(entry.peak_bytes, entry.limit_bytes)
            predicted, grown = _sample(profile, manifest, needed)
            factor = min(CORRECTION_RANGE[1], grown / predicted) if predicted else 1.0
            forced[manifest.runtime] = max(1.0, factor, forced.get(manifest.runtime, 0.0))
        own = {found.export_key: fit_correction([sample]) for name, found, sample in self._ratios if name == device}
        here: dict[str, list[tuple[int, int]]] = {}
        elsewhere: dict[str, dict[str, list[tuple[int, int]]]] = {}
        for name, found, sample in self._ratios:
            if name == device:
                here.setdefault(found.runtime, []).append(sample)
            else:
                elsewhere.setdefault(found.export_key, {}).setdefault(name, []).append(sample)
        return DeviceHistory(
            setbacks=setbacks,
            forced=forced,
            own={key: factor for key, factor in own.items() if key not in setbacks},
            others={key: _agreed(list(samples.values())) for key, samples in elsewhere.items()},
            usual={runtime: fit_correction(samples) for runtime, samples in here.items()},
        )


def _agreed(by_device: Sequence[list[tuple[int, int]]]) -> float:
    """The factor that several other devices bear out: the second largest of theirs.

    One of them alone, or two, may be wrong or lie: they move a prediction by :data:`ALONE` at most.
    """
    factors = sorted((fit_correction(samples) for samples in by_device), reverse=True)
    return factors[1] if len(factors) >= FEW else min(factors[0], ALONE)


def describe_setback(entry: Setback) -> str:
    """One line for people."""
    peak = f"{entry.peak_bytes / MB:.1f} MB" if entry.peak_bytes else "more than it had"
    limit = f" of {entry.limit_bytes / MB:.1f} MB" if entry.limit_bytes else ""
    what = "was over its budget" if entry.code == "over-budget" else "ran out of memory"
    return f"{entry.device} {what} with it in round {entry.round + 1}: {peak}{limit}"


def _sample(profile: DeviceProfile, manifest: ArtifactManifest, peak_bytes: int) -> tuple[int, int]:
    """(expected growth, measured growth) of an artifact on a device."""
    cost = manifest.cost
    expected, _, _ = expected_growth(profile, manifest.runtime, cost.predicted_peak_bytes, cost.graph_bytes)
    return expected, growth_of(profile, manifest.runtime, peak_bytes)
