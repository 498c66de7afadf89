"""The final models of whole runs have the bits they had when they were recorded, on a processor that has a record.

Sums in another order have other bits, and so have other processors' kernels: the record is kept by processor. A change
that means to move bits records them anew, says so, and says why::

    python -m tests.federation.test_record_of_bits

Runs that are resumed, killed, divided among shards or taken over end with the bits of the undisturbed one; their own
tests compare with it in the same process.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.cli.simulate import begin
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import build_method
from coordinator.run_file.loading import load_config, load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from edge.contracts.tensor_file import read_tensor_file
from tests.conformance.method_runs import CASES, run_config
from tests.federation.in_process import InProcessFederation
from tests.federation.relayed_site import RelayedSite
from tests.federation.small_run import config_text, with_convolutions

pytestmark = [pytest.mark.broker, pytest.mark.runtime, pytest.mark.slow]

RECORD = Path(__file__).with_name("bits.json")
DEMO = Path(__file__).parents[2] / "examples" / "digits.toml"
INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "sve")


def processor_kind() -> str:
    """What decides which kernels run here: the machine's architecture and its instruction sets."""
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("flags", "features")):
            flags |= set(line.partition(":")[2].split())
    return " ".join([platform.machine(), *(name for name in INSTRUCTION_SETS if name in flags)])


def _averaged(text: str) -> str:
    """The small run with plain averaging."""
    return text.replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"').replace("frobenius-lambda = 0.0001", "")


def _started(text: str, folder: Path) -> str:
    start_run(load_config_text(text), folder, RunOptions(quiet=True))
    return _digest(folder)


def _digest(run_dir: Path) -> str:
    return hashlib.sha256((run_dir / "checkpoints" / "final.safetensors").read_bytes()).hexdigest()


def _demo(folder: Path) -> str:
    start_run(load_config(DEMO), folder, RunOptions(quiet=True))
    return _digest(folder)


def _statistics(folder: Path) -> str:
    return _started(with_convolutions(config_text(rounds=2, evaluation='every = 0\nnorm = "static"')), folder)


def _buffered(folder: Path) -> str:
    text = _averaged(config_text(rounds=3, local=2, size=2))
    return _started(f'{text}\n[aggregation]\nmode = "buffered"\nbuffer = 2\nmax-staleness = 0\n', folder)


def _masked_with_noise(folder: Path) -> str:
    privacy = "secure-aggregation = true\nclip-norm = 0.25\nnoise-multiplier = 0.5\nreproducible = true\n"
    return _started(f"{_averaged(config_text(rounds=2))}\n[privacy]\n{privacy}", folder)


def _relay(folder: Path) -> str:
    text = _averaged(config_text(rounds=2, local=0, size=1)).replace("devices = 1", "devices = 3")
    folder.mkdir()
    (folder / "exports").mkdir()
    running = InProcessFederation(folder, folder / "exports", text)
    running.shares = [running.dataset.y_train.nonzero()[0][index::3] for index in range(3)]
    with running:
        site = RelayedSite(folder / "site-0", running.broker, running.name, "site-0")
        site.start_relay(min_devices=3)
        for index in range(3):
            running.write_data(f"d{index}", index)
            site.start_agent(f"d{index}", folder / "devices" / f"d{index}" / "data")
        try:
            state = running.run()
        finally:
            site.stop()
    whole = hashlib.sha256()
    for name in sorted(state.tensors):
        whole.update(state.tensors[name].tobytes())
    return whole.hexdigest()


def _simulated(name: str) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        folder.mkdir()
        config = run_config(CASES[name], folder)
        record = begin(config, folder)
        _check_simulated(config, folder, simulate(config, folder, record, SimulationOptions(quiet=True)))
        return _digest(folder)

    return run


def _check_simulated(config: RunConfig, folder: Path, summary: Mapping[str, Any]) -> None:
    models = summary["evaluation"]["models"]
    assert {"server"} <= models.keys()
    assert all(0 <= model["accuracy"] <= 1 for model in models.values())
    assert summary["bytes_down"] > 0
    assert summary["refused"] == 0
    before = build_method(config.method.name, dense_module(config), config.method.options).init().tensors
    after = read_tensor_file(folder / "checkpoints" / "final.safetensors", where="final model")
    assert after.keys() == before.keys()
    assert all(after[n].shape == v.shape and np.isfinite(after[n]).all() for n, v in before.items())
    assert sum(not np.array_equal(after[n], v) for n, v in before.items()) >= 2


RUNS: dict[str, Callable[[Path], str]] = {
    "demo": _demo,
    "small": lambda folder: _started(config_text(), folder),
    "batch norm and a statistics round": _statistics,
    "buffered": _buffered,
    "masked with noise": _masked_with_noise,
    "relay": _relay,
}
SIMULATED = {f"simulated {name}": _simulated(name) for name in CASES}


@pytest.mark.parametrize("name", RUNS)
def test_run_ends_with_the_bits_of_the_record(name: str, tmp_path: Path) -> None:
    recorded = recorded_bits(name)
    assert RUNS[name](tmp_path / "run") == recorded


@pytest.mark.parametrize("name", SIMULATED)
def test_every_method_is_simulated_and_ends_with_the_bits_of_the_record(name: str, tmp_path: Path) -> None:
    found = SIMULATED[name](tmp_path / "run")
    assert found == recorded_bits(name)


def recorded_bits(name: str) -> str:
    """The digest of a run on this processor; skips where there is none."""
    recorded: dict[str, str] = json.loads(RECORD.read_text()).get(processor_kind(), {})
    if name not in recorded:
        pytest.skip(f"no record of it for this processor ({processor_kind()}); python -m {__spec__.name} makes one")
    return recorded[name]


def record() -> None:
    """Add this processor's digests to the record."""
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, run) in enumerate((RUNS | SIMULATED).items()):
            digests[name] = run(Path(folder) / str(number))
            print(f"{digests[name][:16]}  {name}", flush=True)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    RECORD.write_text(json.dumps(known | {processor_kind(): digests}, indent=1) + "\n")


if __name__ == "__main__":
    record()
