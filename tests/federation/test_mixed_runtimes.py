"""Devices with different runtimes in one federation: they end where devices with one runtime end, killed or not.

The runtimes add float32 numbers in different orders, so the models differ by rounding that training carries along.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from tests.federation.small_run import config_text, crash, with_convolutions

pytestmark = [pytest.mark.broker, pytest.mark.runtime, pytest.mark.slow]

DEVICES = 4
TOLERANCE = 1e-5
"""Largest difference of a weight after three rounds; 6e-8 measured for the MLP, 8e-7 for the convolutions."""


@dataclass(frozen=True)
class Finished:
    """A run that ended: its folder and the values of its summary."""

    folder: Path
    summary: dict[str, Any]

    def tensors(self) -> dict[str, np.ndarray]:
        """The global model."""
        return read_tensor_file(self.folder / "checkpoints" / "final.safetensors", where="final")

    def runtimes(self) -> dict[str, str]:
        """Device -> its runtime, as the device table tells it."""
        return {row["device"]: row["runtime"] for row in self.summary["device_table"]}


def finished(folder: Path, *runtimes: str, convolutions: bool = False) -> Finished:
    """A run of four devices that have ``runtimes`` in turn."""
    text = config_text(local=DEVICES, size=DEVICES, runtimes=runtimes)
    if convolutions:
        text = with_convolutions(text)
    return Finished(folder, start_run(load_config_text(text), folder, RunOptions(quiet=True)))


def assert_close(one: Finished, other: Finished) -> None:
    """The same tensors, within :data:`TOLERANCE`."""
    left, right = one.tensors(), other.tensors()
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_allclose(value, right[name], rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.fixture(scope="module", params=["executorch", "onnxruntime_training"])
def other(request: pytest.FixtureRequest) -> str:
    """Each runtime beside onnxruntime that can be started here, in turn."""
    name: str = request.getfixturevalue(request.param)
    return name


@pytest.fixture(scope="module")
def mixed(other: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(tmp_path_factory.mktemp("mixed") / "run", "onnxruntime", other)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(tmp_path_factory.mktemp("alone") / "run", "onnxruntime")


@pytest.fixture(scope="module")
def alone_with_convolutions(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(tmp_path_factory.mktemp("convolutions") / "run", "onnxruntime", convolutions=True)


def test_mixed_federation_ends_where_one_with_a_single_runtime_ends(mixed: Finished, alone: Finished) -> None:
    assert set(alone.runtimes().values()) == {"onnxruntime"}
    assert_close(mixed, alone)
    assert mixed.summary["accuracy"] == pytest.approx(alone.summary["accuracy"], abs=0.005)
    assert mixed.summary["torch_loaded_on_devices"] is False


def test_every_device_gets_artifacts_of_its_runtime_and_the_metrics_count_them(mixed: Finished, other: str) -> None:
    expected = {f"device-0{i}": ("onnxruntime", other)[i % 2] for i in range(DEVICES)}
    assert mixed.runtimes() == expected
    assert mixed.summary["runtimes"] == {other: 2, "onnxruntime": 2}
    with Ledger.open(mixed.folder / "ledger.sqlite") as ledger:
        for entry in ledger.rounds.all():
            assert entry.metrics["runtimes"] == {other: 2, "onnxruntime": 2}
            for assignment in ledger.assignments.of_attempt(entry.round, entry.attempt):
                digest = read_order(assignment.order).artifact.digest
                manifest = (mixed.folder / "blobs" / digest[:2] / digest).read_bytes()
                assert ArtifactManifest.from_bytes(manifest).runtime == expected[assignment.device]


def test_mixed_run_that_was_killed_ends_with_the_same_bits(mixed: Finished, tmp_path: Path) -> None:
    text = (mixed.folder / "config.toml").read_text()
    run_dir = tmp_path / "run"
    crash(run_dir, "collecting", 1, text=text)  # round 1, the first device has answered
    crash(run_dir, "aggregated-1", 2)  # round 2, one update of each runtime is summed
    summary = resume_run(run_dir, RunOptions(quiet=True))
    final = (run_dir / "checkpoints" / "final.safetensors").read_bytes()
    assert final == (mixed.folder / "checkpoints" / "final.safetensors").read_bytes()
    assert summary["runtimes"] == mixed.summary["runtimes"]


def test_mixed_statistics_round_ends_where_one_with_a_single_runtime_ends(
    other: str, alone_with_convolutions: Finished, tmp_path: Path
) -> None:
    mixed = finished(tmp_path / "mixed", other, "onnxruntime", convolutions=True)
    assert_close(mixed, alone_with_convolutions)
    with Ledger.open(mixed.folder / "ledger.sqlite") as ledger:
        last = ledger.rounds.all()[-1]
        orders = [read_order(entry.order) for entry in ledger.assignments.of_attempt(last.round, last.attempt)]
    assert [order.schedule.turns[0].program for order in orders] == ["stats"] * DEVICES
    assert last.metrics["runtimes"] == {other: 2, "onnxruntime": 2}
