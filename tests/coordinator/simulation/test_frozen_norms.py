"""The statistics round of a run whose frozen batch norms are static: it gathers those of the trained norms alone.

Frozen norms keep the statistics that everything above them was trained behind. Measured with all of them gathered anew:
docs/fidelity.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods.slt import SLT
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from edge.contracts.tensor_file import decode_tensors
from tests.coordinator.simulation.small_simulation import changed, final_bytes, simulated

TEXT = """
[federation]
name = "frozen-norms"
seed = 4
rounds = 3
[model]
build = "tests.federation.tiny_convnet:build"
input = [1, 8, 8]
classes = 10
[method]
name = "slt"
rounds = 3
schedule = "equal"
steps = [0.5, 1.0]
levels = [0.5]
norm = "running"
[training]
steps = 4
batch = 16
lr = 0.05
frozen-norm = "static"
[data]
source = "tests.federation.tiny_convnet:digit_images"
scale = 0.0625
[evaluation]
every = 0
[cohort]
size = 2
[[cohort.local]]
count = 2
"""
"""The last round trains what is above the first convolution, behind a norm (``1``) that is frozen."""
FROZEN, TRAINED = ("1.running_mean", "1.running_var"), ("5.running_mean", "5.running_var")


def programs(run_dir: Path, text: str = TEXT) -> list[str]:
    """The program of each round of a simulation of ``text``."""
    simulated(changed(load_config_text(text), federation={"keep_every": 3}), run_dir)
    rounds = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line["program"] for line in rounds if "program" in line]


def test_frozen_norms_keep_the_statistics_that_the_rest_was_trained_behind(tmp_path: Path) -> None:
    assert programs(tmp_path) == ["train"] * 3 + ["stats"]
    before = decode_tensors((tmp_path / "checkpoints" / "round-00003.safetensors").read_bytes(), where="round 3")
    after = decode_tensors(final_bytes(tmp_path), where="final")
    assert all(np.array_equal(after[name], before[name]) for name in FROZEN)
    assert not any(np.array_equal(after[name], before[name]) for name in TRAINED)


@pytest.mark.parametrize("frozen_norm", ["batch", "static"])
def test_no_statistics_are_gathered_where_every_norm_is_frozen_and_static(tmp_path: Path, frozen_norm: str) -> None:
    """Without a norm behind it the second convolution is trained in the last round, above the first one's."""
    text = TEXT.replace(':build"', ':build_one_norm"').replace("static", frozen_norm)
    assert programs(tmp_path, text) == ["train"] * 3 + ["stats"] * (frozen_norm == "batch")


def test_statistics_are_of_the_step_that_was_trained_last(tmp_path: Path) -> None:
    """The run ends with the last round of the step before the last, which would have trained all channels."""
    text = TEXT.replace('frozen-norm = "static"\n', "").replace("rounds = 3\nschedule", "rounds = 6\nschedule")
    config = changed(load_config_text(text), federation={"rounds": 4})
    method = method_of_run(config, dense_module(config))
    assert isinstance(method, SLT)
    assert method.switches == (2, 4)
    simulated(config, tmp_path)
    final = decode_tensors(final_bytes(tmp_path), where="final")
    for name, first in (("5.running_mean", 0.0), ("5.running_var", 1.0)):
        assert not (final[name][:4] == first).any()
        assert (final[name][4:] == first).all()  # channels that no round trained
