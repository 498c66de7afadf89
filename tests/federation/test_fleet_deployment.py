"""The final model sent to the devices of a run: installed once, with what each trained for itself, and taken back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.fleet_deployment import FleetOptions, sent_to_fleet
from coordinator.cli.open_run import RunOptions
from coordinator.deployment import fleet
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from edge.inference.predictor import Predictor
from edge.inference.release import predictor_of
from edge.releases.installed import Releases
from tests.federation.small_run import DEVICES, config_text

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

QUIET = {"quiet": True, "wait_s": 60.0}


def stores(run_dir: Path) -> list[Path]:
    """Those of the local devices, by device."""
    return sorted(path.parent for path in (run_dir / "devices").glob("*/**/releases"))


def on_device(*arguments: str) -> dict[str, Any]:
    """What the device's own command says, in a process that has no torch."""
    code = (
        f"import sys; sys.modules['torch'] = None\nfrom edge.__main__ import main\nsys.exit(main({list(arguments)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a dense model with heads of their own, fine-tuned by those that it helps."""
    folder = tmp_path_factory.mktemp("fleet") / "run"
    text = config_text(evaluation="every = 0\ndevices = 0.2\ndevices-least = 5", rounds=1)
    text = text.replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"').replace("frobenius-lambda = 0.0001", "")
    start_run(
        load_config_text(text + '\n[personal]\nlayers = ["fc3.*"]\nfine-tune = 8\n'), folder, RunOptions(quiet=True)
    )
    return folder


def test_devices_predict_with_what_was_sent_and_their_own(run_dir: Path, tmp_path: Path) -> None:
    found = sent_to_fleet(run_dir, FleetOptions(name="first", **QUIET))
    assert (len(found["installed"]), found["refused"], found["silent"]) == (DEVICES, {}, [])
    assert found["bytes_down"] > 0
    again = sent_to_fleet(run_dir, FleetOptions(name="again", **QUIET))
    assert (len(again["installed"]), again["bytes_down"]) == (DEVICES, 0)
    assert len(stores(run_dir)) == DEVICES
    x = np.random.default_rng(3).integers(0, 17, (20, 64)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    own = []
    for store in stores(run_dir):
        releases = Releases(store).read()
        assert (releases.current.name, releases.current.uses_own, releases.previous) == ("again", True, None)
        predictor = predictor_of(store)
        own.append(predictor.logits(x))
        with pytest.raises(ConfigError, match=r"'fc3\.bias' and 1 more are layers that each device has of its own"):
            Predictor(Releases(store).folder_of(releases.current))
        said = on_device("predict", "--store", str(store), "--data", str(tmp_path / "x.npz"), "--json")
        assert said["predictions"] == predictor.predict(x).tolist()
    assert all(not np.allclose(own[0], other) for other in own[1:])
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        last = [r for r in ledger.rounds.all() if r.state == "committed"][-2:]
        assert [r.metrics["deployment"]["bytes_down"] for r in last] == [found["bytes_down"], 0]
        assert last[0].model_digest == last[1].model_digest
        assert ledger.federation().state == "finished"


def test_interrupted_deployment_goes_on(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fleet, "Collecting", killed)
        with pytest.raises(KeyboardInterrupt):
            sent_to_fleet(run_dir, FleetOptions(name="cut short", **QUIET))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        begun, count = ledger.rounds.open(), len(ledger.rounds.all())
    assert begun is not None
    found = sent_to_fleet(run_dir, FleetOptions(name="another", **QUIET))
    assert len(found["installed"]) == DEVICES
    assert {Releases(store).read().current.name for store in stores(run_dir)} == {"cut short"}
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert (ledger.rounds.open(), len(ledger.rounds.all())) == (None, count)


def test_bad_requests_are_told(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"personal\.layers.*in float32 as onnx alone"):
        sent_to_fleet(run_dir, FleetOptions(int8=True, **QUIET))
    with pytest.raises(ConfigError, match="--name: has 300 characters"):
        sent_to_fleet(run_dir, FleetOptions(name="x" * 300, **QUIET))
    with pytest.raises(ConfigError, match="holds no run"):
        sent_to_fleet(tmp_path, FleetOptions(**QUIET))
