"""``apportion profile`` where only the device agent is installed: the same lines, without typer and NumPy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edge.commands.profile import profile_command
from edge.supervisor.trainer_link import child_environment
from profiles.known_devices import known_names
from profiles.stored_profile import read_profile
from tests.edge.tiny_artifact import softmax_graph, softmax_manifest

DEVICE = (
    "import sys; sys.modules['typer'] = None; from edge.__main__ import main; status = main(sys.argv[1:]);"
    "print(*{'numpy', 'torch', 'psutil', 'coordinator.cli.command'} & set(sys.modules), file=sys.stderr);"
    "sys.exit(status)"
)


def test_profile_on_a_device_needs_nothing_of_the_coordinator(tmp_path: Path) -> None:
    words = ["profile", "--json", "--store", str(tmp_path), "--name", "pi-07"]
    done = subprocess.run(
        [sys.executable, "-c", DEVICE, *words], capture_output=True, text=True, env=child_environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    values = json.loads(line)
    assert (values["schema"], values["ok"], values["method"]) == ("apportion.profile/1", True, "probe")
    assert values["profile"]["storage_free_bytes"] > 0
    assert read_profile(tmp_path / "pi-07.json").profile.device == "pi-07"
    assert done.stderr.splitlines()[-1] == ""


def test_profile_says_what_is_known_from_where_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile_command(["pi-3b-plus"]) == 0
    shown = capsys.readouterr().out
    assert "  memory         1024 MB                              datasheet: Raspberry Pi 3 Model B+" in shown
    assert "not known      clock now, memory free" in shown
    assert profile_command(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(known_names())


@pytest.mark.parametrize(
    ("arguments", "status", "code", "words"),
    [
        (["pi-9"], 2, "bad-config", "not in the catalog; it has fairphone-4"),
        (["--store", "{folder}", "--name", "a/b"], 2, "bad-config", "cannot name a file"),
        (["--store", "{folder}/file"], 1, "system", "File exists"),
    ],
)
def test_profile_that_cannot_be_is_told_on_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], status: int, code: str, words: str
) -> None:
    (tmp_path / "file").touch()
    assert profile_command([*(part.format(folder=tmp_path) for part in arguments), "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["error"]["code"]) == (False, code)
    assert words in told["error"]["message"]


@pytest.mark.slow
def test_profile_measures_every_batch_and_number_of_threads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    graph = softmax_graph()
    (tmp_path / "train.onnx").write_bytes(graph)
    (tmp_path / "manifest.json").write_bytes(softmax_manifest(graph))
    words = ["--measure", str(tmp_path), "--batches", "4,16", "--threads", "1,2", "--steps", "3"]
    assert profile_command([*words, "--json"]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)["measured"]
    assert [(row["batch"], row["threads"], row["steps"]) for row in rows] == [
        (4, 1, 3),
        (4, 2, 3),
        (16, 1, 3),
        (16, 2, 3),
    ]
    assert all(row["step_ms_p50"] > 0 and row["peak_bytes"] > row["idle_bytes"] for row in rows)
    assert captured.err.count(" MB = idle ") == 4
    assert profile_command(["--measure", str(tmp_path), "--batches", "4,x", "--json"]) == 2
    assert "--batches: '4,x' is no list of numbers" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert profile_command(["--measure", str(tmp_path / "none"), "--json"]) == 2


def test_profile_arguments_that_are_none_are_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile_command(["--colour"]) == 2
    assert "--colour" in capsys.readouterr().err
