"""Simulations, runs, plans and checks that a program asks for; what it is told meanwhile, and what it is left with."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import apportion
from tests.apportion.small_federation import digits, perceptron, small

ROOT = Path(__file__).parents[2]


def test_simulation_gives_the_model_that_has_the_reported_accuracy(tmp_path: Path) -> None:
    x, y = digits()
    federation = small(data=(x[:300], y[:300], x[300:], y[300:]), rounds=6)
    history = federation.simulate(tmp_path / "run", quiet=True)
    module = perceptron(seed=5)
    module.load_state_dict(history.state_dict())
    with torch.no_grad():
        right = module(torch.tensor(x[300:])).argmax(1).numpy() == y[300:]
    assert history.accuracy == pytest.approx(right.mean())
    assert history.accuracy > 0.5
    assert history.rounds.column("round") == [1, 2, 3, 4, 5, 6]
    assert history.rounds[-1]["accuracy"] == history.accuracy
    assert history.devices.column("device") == [f"device-0{i}" for i in range(4)]


def test_simulation_leaves_the_threads_of_torch_as_they_were(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        small(rounds=1).simulate(tmp_path / "run", quiet=True)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_callbacks_hear_of_every_report_round_and_commit_once(tmp_path: Path) -> None:
    told: list[Any] = []
    history = small().simulate(
        tmp_path / "run",
        on_report=lambda report: told.append(report.device),
        on_commit=lambda done, tensors: told.append((done, sorted(tensors))),
        on_round=lambda row: told.append(row),
        quiet=True,
    )
    devices = [f"device-0{i}" for i in range(4)]
    names = ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert told[:5] == [*devices, (1, names)]
    assert told[6:11] == [*devices, (2, names)]
    assert [told[5]["round"], told[11]["round"]] == [1, 2]
    assert told[11]["accuracy"] == history.accuracy


def test_callback_that_raises_ends_the_simulation_which_goes_on_later(tmp_path: Path) -> None:
    def stop(row: Any) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        small().simulate(tmp_path / "run", on_round=stop, quiet=True)
    rounds: list[int] = []
    history = small().simulate(tmp_path / "run", on_round=lambda row: rounds.append(row["round"]), quiet=True)
    assert rounds == [2]
    whole = small().simulate(tmp_path / "whole", quiet=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(history.state_dict()[name], value)


def test_simulation_within_an_event_loop_and_in_a_thread(tmp_path: Path) -> None:
    async def within() -> apportion.History:
        direct = small(rounds=1).simulate(tmp_path / "direct", quiet=True)
        aside = await asyncio.to_thread(lambda: small(rounds=1).simulate(tmp_path / "aside", quiet=True))
        assert direct.accuracy == aside.accuracy
        return direct

    assert len(asyncio.run(within()).rounds) == 1


@pytest.mark.slow
def test_several_workers_take_arrays_and_give_the_same_bits(tmp_path: Path) -> None:
    model = "tests.apportion.test_federation:importable"
    one = small(model=model).simulate(tmp_path / "one", quiet=True).state_dict()
    two = small(model=model).simulate(tmp_path / "two", workers=2, quiet=True).state_dict()
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.slow
def test_run_with_local_devices_has_the_simulations_accuracy(tmp_path: Path) -> None:
    reported: list[str] = []

    async def within() -> apportion.History:
        return small().run(tmp_path / "loop", on_report=lambda report: reported.append(report.device), quiet=True)

    in_loop = asyncio.run(within())
    found: list[apportion.History] = []
    thread = threading.Thread(target=lambda: found.append(small().run(tmp_path / "thread", quiet=True)))
    thread.start()
    thread.join()
    simulated = small().simulate(tmp_path / "simulated", quiet=True)
    assert sorted(reported) == sorted(2 * [f"device-0{i}" for i in range(4)])
    assert in_loop.accuracy == found[0].accuracy == pytest.approx(simulated.accuracy, abs=0.01)
    assert in_loop.summary["torch_loaded_on_devices"] is False
    assert apportion.resume(tmp_path / "loop").accuracy == in_loop.accuracy  # it has ended: the same again


@pytest.mark.slow
def test_run_that_a_callback_ended_is_resumed(tmp_path: Path) -> None:
    def stop(row: Any) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        small(rounds=3).run(tmp_path / "run", on_round=stop, quiet=True)
    history = apportion.load(tmp_path / "run")
    assert len(history.rounds) == 1
    with pytest.raises(apportion.ApportionError, match=r"has not ended; go on with apportion\.resume"):
        _ = history.accuracy
    resumed = apportion.resume(tmp_path / "run", quiet=True)
    assert resumed.rounds.column("round") == [1, 2, 3]
    with pytest.raises(apportion.ConfigError, match="holds a run already"):
        small(rounds=3).run(tmp_path / "run", quiet=True)


ENDED_EARLY = """
import sys
from tests.apportion.small_federation import small
def stop(row):
    raise RuntimeError("enough")
small(rounds=2).run(sys.argv[1], on_round=stop, quiet=True)
"""
RESUMED = """
import sys
import apportion
from tests.apportion.small_federation import small
if sys.argv[2] == "built":
    small(rounds=2)
print(len(apportion.resume(sys.argv[1], quiet=True).rounds))
"""


@pytest.mark.slow
def test_another_process_resumes_what_it_builds_again(tmp_path: Path) -> None:
    def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "run"), *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert "RuntimeError: enough" in python(ENDED_EARLY).stderr
    without = python(RESUMED, "not built")
    assert without.returncode != 0
    assert "an object that another Python process was given; build the same Federation in this one" in without.stderr
    built = python(RESUMED, "built")
    assert (built.stdout, built.returncode) == ("2\n", 0), built.stderr


@pytest.mark.slow
def test_buffered_run_tells_of_each_report_once(tmp_path: Path) -> None:
    told: list[str] = []
    buffered = {"mode": "buffered", "buffer": 2}
    history = small(aggregation=buffered, rounds=3).run(
        tmp_path / "run", on_report=lambda report: told.append(report.assignment_id), quiet=True
    )
    assert len(told) == len(set(told)) == sum(history.rounds.column("reports"))


@pytest.mark.slow
def test_plan_and_export_and_doctor_of_a_handed_over_module(tmp_path: Path) -> None:
    federation = small(devices=[apportion.LocalDevices(count=3, budget_mb=300), {"count": 1, "budget_mb": 1}])
    rows = federation.plan()
    assert rows.column("level") == ["full", None]
    assert "budget" in rows[1]["error"]
    files = federation.export(tmp_path / "artifact")
    assert {row["file"] for row in files} >= {"train.onnx", "eval.onnx"}
    assert json.loads((tmp_path / "artifact" / "manifest.json").read_text())["build"]["model"].startswith(
        "apportion.given:"
    )
    with pytest.raises(apportion.ConfigError, match=r"out: .* is not an empty folder"):
        federation.export(tmp_path / "artifact")
    with pytest.raises(apportion.ConfigError, match="fedavg has no level 7; its levels are 'full'"):
        federation.export(tmp_path / "other", level=7)
    assert federation.doctor().ok
    found = apportion.doctor(perceptron(), input_shape=(64,), classes=10)
    assert found.ok
    assert len(found.layers) == 3


def test_doctor_of_a_run_file_names_its_problems(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[federation]\nrounds = 0\n")
    found = apportion.doctor(tmp_path / "run.toml")
    assert not found.ok
    assert any("$.federation.rounds: 0 is outside" in row["detail"] for row in found)


def test_bench_refuses_an_object_that_no_process_can_import() -> None:
    with pytest.raises(apportion.ConfigError, match="other processes measure it"):
        apportion.bench(perceptron(), input_shape=(64,), classes=10)  # type: ignore[arg-type]


def test_names_of_methods_and_models() -> None:
    assert {"fedavg", "fedhm"} <= set(apportion.methods())
    assert "resnet20" in apportion.models()
    assert apportion.method_class("fedavg").__name__ == "FedAvg"


def test_load_says_where_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(apportion.ConfigError, match=r"holds no run \(no config.toml in it\)"):
        apportion.load(tmp_path)


def test_history_reads_past_a_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    entry = {"event": "round", "round": 0, "program": "train", "train_loss": 1.0}
    again = {**entry, "train_loss": 0.5}
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text(f'{json.dumps(entry)}\n{json.dumps(again)}\n{{"event": "rou')
    history = apportion.load(tmp_path)
    assert history.rounds.column("train_loss") == [0.5]
    with pytest.raises(apportion.ApportionError, match="the run may not have ended"):
        history.state_dict()


def test_rows_show_as_a_table_and_give_columns() -> None:
    rows = apportion.Rows([{"name": "a", "mean": np.float64(0.51234567)}, {"name": "bb", "other": None}])
    assert repr(rows) == "name  mean    other\na     0.5123\nbb"
    assert rows.column("mean") == [0.51234567, None]
    with pytest.raises(KeyError, match="the names are name, mean, other"):
        rows.column("median")


def test_rows_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    frame = apportion.Rows([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}]).to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.accuracy) == [0.5, 0.75]


def test_plot_draws_every_round(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    matplotlib.use("agg")
    figure = small(rounds=3).simulate(tmp_path / "run", quiet=True).plot()
    accuracy, loss = figure.axes
    assert list(accuracy.lines[0].get_xdata()) == [1, 2, 3]
    assert len(loss.lines[0].get_ydata()) == 3


def test_without_pandas_and_matplotlib_the_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "matplotlib"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(apportion.ConfigError, match="pandas is not installed"):
        apportion.Rows([]).to_dataframe()
    with pytest.raises(apportion.ConfigError, match="matplotlib is not installed"):
        apportion.History(Path("nowhere")).plot()
