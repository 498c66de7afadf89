"""What a run learns: from setbacks always, from measurements where the run says so."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.ledger.records import Measurement, Setback
from coordinator.planning.history import ALONE, History, _agreed
from coordinator.planning.prediction import MB
from edge.contracts.manifest import ArtifactManifest
from profiles.device import DeviceProfile
from tests.contracts.samples import MANIFEST

IDLE_MB = 20 + 4 + 50
"""Supervisor, its transfers, trainer."""


def profile(device: str) -> DeviceProfile:
    return DeviceProfile(
        device=device, supervisor_idle_bytes=20 * MB, trainer_idle_bytes={"onnxruntime": 50 * MB, "executorch": 50 * MB}
    )


def manifest(key: str, growth_mb: int, runtime: str = "onnxruntime") -> ArtifactManifest:
    cost = msgspec.structs.replace(MANIFEST.cost, predicted_peak_bytes=growth_mb * MB)
    return msgspec.structs.replace(MANIFEST, cost=cost, export_key=key, runtime=runtime)


MANIFESTS = {"full": manifest("full", 100), "half": manifest("half", 50), "et": manifest("et", 40, "executorch")}


def measured(device: str, key: str, peak_mb: float) -> Measurement:
    return Measurement(
        device=device,
        export_key=key,
        batch=32,
        predicted_peak_bytes=1,
        measured_peak_bytes=round(peak_mb * MB),
        step_ms=1.0,
    )


def setback(device: str, artifact: str, peak_mb: float, limit_mb: float, code: str = "out-of-memory") -> Setback:
    return Setback(
        assignment_id="a",
        device=device,
        round=4,
        level="full",
        artifact_digest=artifact,
        code=code,
        peak_bytes=round(peak_mb * MB),
        limit_bytes=round(limit_mb * MB),
    )


def history(*evidence: Setback | Measurement) -> History:
    return History(
        setbacks=[entry for entry in evidence if isinstance(entry, Setback)],
        measurements=[entry for entry in evidence if isinstance(entry, Measurement)],
        profiles={name: profile(name) for name in ("pi-1", "pi-2")},
        manifest=MANIFESTS.get,
        manifest_of_key=MANIFESTS.get,
    )


def test_without_evidence_nothing_is_corrected() -> None:
    found = history().of(profile("pi-1"))
    assert (found.correction("onnxruntime", "full"), found.setback("full")) == (1.0, "")


def test_setback_makes_the_runtimes_other_steps_grow_as_much_more() -> None:
    """The process was killed at a limit of 194 MB, 120 above idle where 100 were predicted."""
    found = history(setback("pi-1", "full", 150, IDLE_MB + 120)).of(profile("pi-1"))
    assert "pi-1 ran out of memory with it in round 5: 150.0 MB of 194.0 MB" in found.setback("full")
    assert found.correction("onnxruntime", "half") == pytest.approx(1.2)
    assert found.correction("executorch", "et") == 1.0
    other = history(setback("pi-1", "full", 150, IDLE_MB + 120)).of(profile("pi-2"))
    assert (other.setback("full"), other.correction("onnxruntime", "half")) == ("", 1.0)


def test_setback_below_its_prediction_forces_nothing_but_is_not_repeated() -> None:
    found = history(setback("pi-1", "full", 0, IDLE_MB + 60, "trainer-crashed")).of(profile("pi-1"))
    assert (bool(found.setback("full")), found.correction("onnxruntime", "half")) == (True, 1.0)


def test_own_measurement_of_an_artifact_comes_before_all_others() -> None:
    found = history(
        measured("pi-1", "full", IDLE_MB + 80), measured("pi-1", "half", IDLE_MB + 60), measured("pi-2", "half", 300)
    ).of(profile("pi-1"))
    assert found.correction("onnxruntime", "full") == pytest.approx(0.8)
    assert found.correction("onnxruntime", "half") == pytest.approx(1.2)


def test_artifact_that_never_ran_here_is_expected_as_large_as_there_is_reason_for() -> None:
    """This device measured 0.8 of another artifact's prediction, another device 1.4 of this one's."""
    evidence = measured("pi-1", "full", IDLE_MB + 80), measured("pi-2", "half", IDLE_MB + 70)
    found = history(*evidence).of(profile("pi-1"))
    assert found.correction("onnxruntime", "half") == pytest.approx(1.4)
    assert found.usual_correction("onnxruntime") == pytest.approx(0.8)


def test_artifact_that_went_over_a_budget_is_not_believed_to_fit_by_its_measurement() -> None:
    over = setback("pi-1", "full", IDLE_MB + 110, IDLE_MB + 100, "over-budget")
    found = history(over, measured("pi-1", "full", IDLE_MB + 110)).of(profile("pi-1"))
    assert "was over its budget with it in round 5" in found.setback("full")
    assert found.correction("onnxruntime", "half") == pytest.approx(1.1)


def test_evidence_of_artifacts_that_are_gone_is_left_out() -> None:
    found = history(setback("pi-1", "gone", 1, 1), measured("pi-1", "gone", 300)).of(profile("pi-1"))
    assert found.correction("onnxruntime", "full") == 1.0


def test_a_false_peak_of_one_device_moves_no_other_devices_prediction_far() -> None:
    honest = [[(100, 110)], [(100, 105), (100, 108)], [(100, 109)]]
    assert _agreed(honest) == pytest.approx(1.09)
    assert _agreed([*honest, [(100, 2**44)]]) == pytest.approx(1.10)
    assert _agreed([[(100, 2**44)]]) == ALONE
