"""A ladder of hand-made artifacts: climbed, resumed, stopped at a limit, and what may be wrong with one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from edge.commands.profile import profile_command
from edge.contracts.errors import ConfigError, DeviceRefused
from edge.measuring import step_measurement
from edge.measuring.climb import Climb, climb
from edge.measuring.ladder import Ladder, Rung, chosen_rungs, ladder_path, read_ladder
from edge.measuring.results import FILE_NAME, TOOK_ALL, ResultsFile, read_rows, row_of
from edge.measuring.step_measurement import MB, runtime_about
from edge.supervisor.trainer_link import child_environment
from edge.transfer.link_rate import LinkRate
from profiles.measured_lines import read_measured_lines
from profiles.stored_profile import read_profile
from tests.edge.tiny_artifact import BATCH, softmax_graph, softmax_manifest

DEVICE = "import sys; sys.modules['typer'] = None; from edge.__main__ import main; sys.exit(main(sys.argv[1:]))"
SIZES = (4 * MB, 16 * MB, 200 * MB)


@pytest.fixture
def ladder(tmp_path: Path) -> Path:
    """Three rungs of one graph, told apart by what their manifests predict."""
    folder = tmp_path / "ladder"
    graph = softmax_graph()
    rungs = []
    for number, size in enumerate(SIZES):
        name = f"rung-{number}"
        manifest = softmax_manifest(graph, predicted_peak_bytes=size)
        (folder / name).mkdir(parents=True)
        (folder / name / "train.onnx").write_bytes(graph)
        (folder / name / "manifest.json").write_bytes(manifest)
        rungs.append(
            Rung(
                shape=f"softmax-{number}",
                folder=name,
                digest=hashlib.sha256(manifest).hexdigest(),
                runtime="onnxruntime",
                batch=BATCH,
                parameters=21,
                macs=18,
                live_bytes=500,
                predicted_bytes=size,
                is_quick=number == 1,
            )
        )
    ladder_path(folder).write_bytes(msgspec.json.encode(Ladder(rungs=tuple(rungs))))
    return folder


def wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    give_up_at = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < give_up_at:
        time.sleep(0.02)
    return condition()


def quick_climb(folder: Path, **changes: object) -> Climb:
    what = Climb(folder, read_ladder(folder).rungs, (1,), is_quick=True)
    return replace(what, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_rung_is_measured_once_and_is_on_the_disk(ladder: Path) -> None:
    lines: list[str] = []
    rows = climb(quick_climb(ladder), ResultsFile(ladder), lines.append)
    assert [row.outcome for row in rows] == ["measured"] * 3
    assert [row.shape for row in rows] == ["softmax-0", "softmax-1", "softmax-2"]
    assert all(row.step_ms_p50 > 0 and row.peak_bytes > row.idle_bytes > 20 * MB for row in rows)
    kept = read_rows((ladder / FILE_NAME).read_text().splitlines())
    assert [row.outcome for row in kept] == ["begun", "measured"] * 3
    again = climb(quick_climb(ladder), ResultsFile(ladder), lines.append)
    assert again == rows
    assert sum("measured before" in line for line in lines) == 3


@pytest.mark.slow
def test_what_began_and_never_ended_is_killed_and_what_was_interrupted_is_begun_again(ladder: Path) -> None:
    first, second, third = read_ladder(ladder).rungs
    about = runtime_about("onnxruntime")
    assert about is not None
    results = ResultsFile(ladder)
    for rung, outcome in ((first, "interrupted"), (second, "begun")):
        row = row_of(rung, threads=1, runtime_version=about[0], limit_bytes=0, asked_steps=10)
        results.add(msgspec.structs.replace(row, outcome=outcome))
    with (ladder / FILE_NAME).open("a") as file:
        file.write('{"shape": "cut off in the mid')
    rows = climb(quick_climb(ladder), ResultsFile(ladder), print)
    assert [row.outcome for row in rows] == ["measured", "killed", "skipped"]
    assert rows[1].reason == TOOK_ALL
    assert rows[2].reason == f"above softmax-1 at batch {BATCH}, which was killed"
    assert third.shape == rows[2].shape
    # The line that was cut off did not spoil the one after it.
    assert [row.outcome for row in read_rows((ladder / FILE_NAME).read_text().splitlines())][-1] == "measured"
    forced = climb(quick_climb(ladder, again=True), ResultsFile(ladder), print)
    assert [row.outcome for row in forced] == ["measured"] * 3


@pytest.mark.slow
def test_a_climb_that_is_terminated_goes_on_where_it_was(ladder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEVICE, "profile", "--ladder", str(ladder), "--threads", "1", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=child_environment()
    ) as climber:
        assert wait_for(lambda: (ladder / FILE_NAME).exists() and "begun" in (ladder / FILE_NAME).read_text())
        with pytest.raises(ConfigError, match="another climb writes"), ResultsFile(ladder).held():
            pass
        climber.terminate()
        assert climber.stderr is not None
        assert b"goes on where it was" in climber.stderr.read()
    assert climber.returncode == 130
    last = read_rows((ladder / FILE_NAME).read_text().splitlines())[-1]
    assert last.outcome in ("interrupted", "measured")
    rows = climb(quick_climb(ladder), ResultsFile(ladder), print)
    assert [row.outcome for row in rows] == ["measured"] * 3


@pytest.mark.slow
def test_a_rung_killed_at_its_limit_ends_the_climb(ladder: Path) -> None:
    rows = climb(quick_climb(ladder, ceiling_bytes=24 * MB), ResultsFile(ladder), print)
    assert [row.outcome for row in rows] == ["killed", "skipped", "skipped"]
    assert "at its limit of 24 MB" in rows[0].reason
    assert (rows[0].steps, rows[0].peak_bytes) == (0, 0)
    more = climb(quick_climb(ladder, ceiling_bytes=160 * MB), ResultsFile(ladder), print)
    assert [row.outcome for row in more] == ["measured", "measured", "skipped"]
    assert more[2].reason.startswith("predicted to reach 2")
    assert more[2].reason.endswith("the limit is 160 MB")


@pytest.mark.slow
def test_a_rung_that_is_another_artifact_fails_alone(ladder: Path) -> None:
    (ladder / "rung-0" / "train.onnx").write_bytes(b"other")
    other = softmax_manifest(softmax_graph(), predicted_peak_bytes=5)
    (ladder / "rung-1" / "manifest.json").write_bytes(other)
    rows = climb(quick_climb(ladder), ResultsFile(ladder), print)
    assert [row.outcome for row in rows] == ["failed", "failed", "measured"]
    assert "train.onnx has digest" in rows[0].reason
    assert "copy the ladder again" in rows[1].reason


def test_a_ladder_for_another_runtime_is_refused(ladder: Path) -> None:
    rungs = tuple(msgspec.structs.replace(rung, runtime="unheard") for rung in read_ladder(ladder).rungs)
    lines: list[str] = []
    with pytest.raises(ConfigError, match="for unheard, which this device does not have"):
        climb(quick_climb(ladder, rungs=rungs), ResultsFile(ladder), lines.append)
    assert lines == [line for line in lines if "unheard: not on this device" in line and "3 rungs left out" in line]


def test_a_runtime_whose_probe_is_killed_is_not_said_to_be_absent(
    ladder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(step_measurement, "runtime_python", lambda name: killed)
    lines: list[str] = []
    with pytest.raises(DeviceRefused, match=r"nothing was measured: .* was ended, SIGKILL"):
        climb(quick_climb(ladder), ResultsFile(ladder), lines.append)
    assert ["SIGKILL" in line and "3 rungs left out" in line and "not on this" not in line for line in lines] == [True]


def test_rungs_are_chosen_by_number_runtime_and_quickness(ladder: Path) -> None:
    whole = read_ladder(ladder)
    assert [rung.shape for rung in chosen_rungs(whole, quick=True)] == ["softmax-1"]
    assert [rung.shape for rung in chosen_rungs(whole, quick=True, numbers=(1, 3))] == ["softmax-0", "softmax-2"]
    with pytest.raises(ConfigError, match="4 is not a rung, the ladder has 1 to 3"):
        chosen_rungs(whole, numbers=(1, 4))
    with pytest.raises(ConfigError, match="no rung for runtime 'executorch', the ladder has rungs for onnxruntime"):
        chosen_rungs(whole, runtime="executorch")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no ladder.json"),
        ("{", "cannot be read"),
        ('{"schema": "apportion.ladder/9"}', "apportion.ladder/1"),
    ],
)
def test_a_folder_that_is_no_ladder_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        ladder_path(tmp_path).write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_ladder(tmp_path)


def test_a_rung_outside_the_ladders_folder_is_refused(ladder: Path) -> None:
    (first, *_) = read_ladder(ladder).rungs
    ladder_path(ladder).write_bytes(msgspec.json.encode(Ladder(rungs=(msgspec.structs.replace(first, folder="../x"),))))
    with pytest.raises(ConfigError, match=r"'\.\./x' is no rung's folder"):
        read_ladder(ladder)


@pytest.mark.slow
def test_the_verb_on_a_device_keeps_what_it_measured(
    ladder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ladder", str(ladder), "--threads", "1", "--keep", str(tmp_path / "store")]
    words += ["--store", str(tmp_path / "devices"), "--name", "pi-07", "--json"]
    assert profile_command([*words, "--rung", "1", "--rung", "2"]) == 0
    captured = capsys.readouterr()
    values = json.loads(captured.out)
    assert (values["schema"], values["method"]) == ("apportion.profile/1", "measured")
    assert [row["outcome"] for row in values["ladder"]["rows"]] == ["measured"] * 2
    assert [line["runtime"] for line in values["ladder"]["memory"]] == ["onnxruntime"]
    assert values["ladder"]["step_times"] == []
    assert any("step times on onnxruntime" in problem for problem in values["ladder"]["problems"])
    assert "no sensor can be read here" in captured.err or " C, at most " in captured.err
    stored = read_profile(tmp_path / "devices" / "pi-07.json")
    lines = read_measured_lines(tmp_path / "store")
    assert stored.method == "measured"
    assert stored.profile.memory_lines == lines.memory_lines
    assert lines.memory_lines["onnxruntime"].growth_bytes(10 * MB) > 0
    assert stored.profile.trainer_idle_bytes["onnxruntime"] > stored.profile.supervisor_idle_bytes > 10 * MB
    assert (tmp_path / "store" / FILE_NAME).exists()
    LinkRate(tmp_path / "store").add(3_000_000, 2.0)
    assert profile_command(["--keep", str(tmp_path / "store"), "--json"]) == 0
    later = json.loads(capsys.readouterr().out)["profile"]
    assert (later["link_bytes_per_s"], later["link_method"]) == (1.5e6, "transfers")
    assert later["memory_lines"]["onnxruntime"]["scale"] == lines.memory_lines["onnxruntime"].scale


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ladder", "{ladder}", "--rung", "9"], "9 is not a rung"),
        (["--ladder", "{ladder}", "--runtime", "executorch"], "no rung for runtime 'executorch'"),
        (["--ladder", "{ladder}", "--threads", "two"], "--threads: 'two' is no list of numbers"),
        (["--ladder", "{ladder}", "--ceiling-mb", "-1"], "--ceiling-mb: -1.0 is negative"),
        (["--ladder", "{ladder}/none"], "has no ladder.json"),
        (["pi-4-4gb", "--ladder", "{ladder}"], "'pi-4-4gb' is a device of the catalog"),
    ],
)
def test_a_climb_that_cannot_be_is_exit_2(
    ladder: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert profile_command([*(word.format(ladder=ladder) for word in words), "--json"]) == 2
    assert told in json.loads(capsys.readouterr().out)["error"]["message"]
