"""Steps of ExecuTorch that begin at features: the gate, and what the step that runs its frozen layers gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.training.self_test import check_self_test
from tests.export.features.device import BATCH, EXAMPLES, device
from tests.export.features.networks import GroupOfTwo

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def test_kept_features_give_the_bits_of_the_whole_step_and_are_computed_once(tmp_path: Path) -> None:
    on, plain = (device(tmp_path, features, "executorch") for features in ("float32", ""))
    assert on.manifest.parity.max_grad_rel_err <= on.manifest.parity.tolerance
    assert [file.name for file in on.manifest.files if file.name.startswith("features")] == ["features.pte"]
    whole = plain.trained()
    assert on.trained() == whole
    assert on.trained(tmp_path / "kept") == whole
    assert BATCH < on.computed <= EXAMPLES
    assert on.trained(tmp_path / "kept") == whole
    assert on.computed == 0
    assert check_self_test(on.session, on.manifest, steps=3) <= 1e-5


def test_kept_features_go_by_micro_batches_to_the_last_bits(tmp_path: Path) -> None:
    on, plain = (device(tmp_path, f, "executorch", of=GroupOfTwo, micro_batches=2) for f in ("float32", ""))
    bare = on.trained()
    assert on.trained(tmp_path / "kept") == bare
    whole = plain.trained()
    assert bare[0] == pytest.approx(whole[0], rel=1e-6)
    for name, values in bare[1].items():  # the whole program is fused otherwise where it is divided
        ours, theirs = (np.frombuffer(v, np.float32) for v in (values, whole[1][name]))
        assert np.abs(ours - theirs).max() <= 1e-6 * np.abs(theirs).max()
