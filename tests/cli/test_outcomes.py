"""Every exit status and the one JSON line that goes with it, each provoked by what really causes it."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path

import pytest

from coordinator.cli.command import verb
from tests.cli.conftest import OWN, Command
from tests.federation.small_run import config_text

COSTS = ("costs", "--method", "fedhm", "--model", "mlp", "--level", "4", "--json")


def test_exit_0_is_one_line_with_schema_and_ok(command: Command) -> None:
    outcome = command(*COSTS)
    assert outcome.status == 0
    assert outcome.line["schema"] == "apportion.costs/1"
    assert outcome.line["ok"] is True


def test_exit_1_and_4_name_what_failed_and_how_to_go_on(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(config_text(local=0, join_timeout_s=0.2))
    outcome = command("run", config, "--run-dir", tmp_path / "run", "--json")
    assert outcome.status == 4
    assert outcome.error["code"] == "deadline-expired"
    assert "0 of 3 devices said hello" in outcome.error["message"]
    assert f"apportion resume {tmp_path / 'run'}" in outcome.error["hint"]
    (tmp_path / "run" / "config.toml").unlink()
    (tmp_path / "run" / "ledger.sqlite").write_bytes(b"not a ledger at all, whatever its name is" * 100)
    outcome = command("resume", tmp_path / "run", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "ledger-error")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nope"], "nope"),
        (["run"], "CONFIG"),
        (["export", "--model", "mlp"], "--out"),
        (["export", "--model", "mlp", "--out", "x", "--batch", "0"], "--batch"),
        (["export", "--model", "mlp", "--out", "x", "--batch", "many"], "--batch"),
        (["export", "--model", "mlp", "--out", "x", "--colour", "red"], "--colour"),
        (["bench", "step"], "--model"),
        (["bench", "walk"], "walk"),
        (["costs", "--method", "fedhm", "--model", "mlp"], "--level"),
    ],
)
def test_exit_2_for_arguments_the_command_line_has_not(arguments: list[str], named: str, command: Command) -> None:
    outcome = command(*arguments, "--json")
    assert outcome.status == 2
    assert outcome.error["code"] == "bad-arguments"
    assert named in outcome.error["message"]
    assert outcome.error["message"] in outcome.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "nowhere.toml"], "nowhere.toml: no such file"),
        (["plan", "nowhere.toml"], "nowhere.toml: no such file"),
        (["doctor", "nowhere.toml"], "nowhere.toml: no such file"),
        (["resume", "nowhere"], "nowhere holds no run"),
        (["verify", "nowhere"], "nowhere: no artifact there"),
        (["doctor", "resnet21"], "unknown model 'resnet21'; known: conv2, "),
        (["export", "--model", "resnet21", "--out", "x"], "resnet20"),
        (["export", "--model", "no.such:thing", *OWN, "--out", "x"], "cannot import 'thing' from 'no.such'"),
        (["export", "--model", "tests.cli.own_models:small", "--classes", "3", "--out", "x"], "shape of one example"),
        (["export", "--model", "tests.cli.own_models:small", "--input", "8", "--out", "x"], "--classes"),
        (["export", "--model", "mlp", "--out", "x", "--input", "8,x"], "--input: '8,x' is not a shape"),
        (
            ["export", "--model", "mlp", "--out", "x", "--runtime", "abacus"],
            "no exporter for 'abacus'; there is one for",
        ),
        (["export", "--model", "mlp", "--out", "x", "--cut", "fedhm"], "write method:level"),
        (["export", "--model", "mlp", "--out", "x", "--cut", "magic:4"], "unknown method 'magic'; known: adapter"),
        (["export", "--model", "mlp", "--out", "x", "--cut", "fedhm:4,colour=1"], "fedhm has no such option"),
        (["export", "--model", "resnet8", "--out", "x", "--freeze", "99"], "99 blocks asked for, ResNet has 3"),
        (["costs", "--method", "magic", "--model", "mlp", "--level", "4"], "known: adapter, "),
        (["bench", "step", "--model", "mlp", "--runtime", "abacus"], "no exporter for 'abacus'; there is one for"),
    ],
)
def test_exit_2_for_values_that_cannot_be(
    arguments: list[str], named: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command(*arguments, "--json")
    assert outcome.status == 2, outcome.err
    assert outcome.error["code"] == "bad-config"
    assert named in outcome.error["message"]
    assert named in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_exit_3_for_a_broker_that_is_not_there(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can be there
        url = f"mqtt://127.0.0.1:{taken.getsockname()[1]}"
        config = tmp_path / "run.toml"
        config.write_text(config_text(broker=f'url = "{url}"', local=0))
        monkeypatch.setattr("coordinator.cli.doctor.BROKER_TIMEOUT_S", 0.2)
        outcome = command("doctor", config, "--json")
    assert outcome.status == 3
    assert outcome.error["code"] == "not-ready"
    assert f"broker: {url} cannot be reached" in outcome.error["message"]


def test_exit_5_for_a_bug_of_ours_with_its_traceback_on_stderr(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("counted to zero")

    monkeypatch.setattr("coordinator.submodels.costs.cut_costs", broken)
    outcome = command(*COSTS)
    assert outcome.status == 5
    assert outcome.line["error"]["code"] == "bug"
    assert outcome.line["error"]["message"] == "ZeroDivisionError: counted to zero"
    assert "Traceback" in outcome.err
    assert "this is a bug; please report it" in outcome.err


def test_full_disk_is_no_bug_of_ours(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/mnt/card/model")

    monkeypatch.setattr("coordinator.submodels.costs.cut_costs", full)
    outcome = command(*COSTS)
    assert (outcome.status, outcome.error["code"]) == (1, "system")
    assert "/mnt/card/model" in outcome.error["message"]


def test_interrupt_is_exit_130_and_still_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coordinator.submodels.costs.cut_costs", interrupted)
    outcome = command(*COSTS)
    assert (outcome.status, outcome.error["code"]) == (130, "interrupted")


BROKEN = {
    "syntax_error.py": "def model(:",
    "raises.py": "raise RuntimeError('no licence')",
    "loads.py": "def data(path, seed, holdout):\n    raise RuntimeError('disk is gone')",
}


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        ("syntax_error:model", 2, "SyntaxError"),
        ("raises:data", 2, "RuntimeError: no licence"),
        ("loads:data", 1, "RuntimeError: disk is gone"),
    ],
)
def test_code_of_the_user_that_fails_is_no_bug_of_ours(
    source: str, status: int, words: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "run.toml"
    config.write_text(config_text().replace('source = "digits"', f'source = "{source}"'))
    outcome = command("run", config, "--run-dir", tmp_path / "run", "--json")
    assert outcome.status == status
    assert words in outcome.error["message"]
    if status == 2:
        outcome = command("export", "--model", source, *OWN, "--out", tmp_path / "artifact", "--json")
        assert outcome.status == 2
        assert words in outcome.error["message"]


def test_folder_that_is_a_file_is_exit_2_by_its_name(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for arguments in (["demo", "--run-dir", file], ["export", "--model", "mlp", "--out", file]):
        outcome = command(*arguments, "--json")
        assert outcome.status == 2
        assert str(file) in outcome.error["message"]


def test_what_a_model_prints_is_kept_off_stdout(command: Command, tmp_path: Path) -> None:
    outcome = command(
        "export", "--model", "tests.cli.own_models:talkative", *OWN, "--out", tmp_path / "artifact", "--json"
    )
    assert outcome.line["ok"] is True
    assert "hello from the model" in outcome.err


def test_numbers_json_has_not_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    @verb("example")
    def diverged(as_json: bool) -> dict[str, object]:
        return {"loss": float("nan"), "losses": [1.0, float("inf")], "nested": {"loss": float("-inf")}}

    with pytest.raises(Exception) as ended:
        diverged(as_json=True)
    assert ended.value.exit_code == 0  # type: ignore[attr-defined]
    line = json.loads(capsys.readouterr().out)
    assert line["loss"] is None
    assert line["losses"] == [1.0, None]
    assert line["nested"] == {"loss": None}


def test_result_that_is_not_ok_ends_with_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    @verb("example")
    def refused(as_json: bool) -> dict[str, object]:
        return {"ok": False, "exit_code": 3}

    with pytest.raises(Exception) as ended:
        refused(as_json=True)
    assert ended.value.exit_code == 3  # type: ignore[attr-defined]
    assert json.loads(capsys.readouterr().out) == {"schema": "apportion.example/1", "ok": False}
