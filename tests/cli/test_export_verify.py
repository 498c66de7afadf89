"""``export`` writes an artifact or names the layer; ``verify`` repeats the gate, or the self-test without torch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge.contracts.manifest import ArtifactManifest
from tests.cli.conftest import OWN, Command

ROOT = Path(__file__).parents[2]
SMALL = "tests.cli.own_models:small"

WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # importing it raises, as where it is not installed
from edge.__main__ import main
status = main(sys.argv[2:])
print("loaded:", *sorted({n.split(".")[0] for n in sys.modules if sys.modules[n]}), file=sys.stderr)
sys.exit(status)
"""


def without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``apportion ARGUMENTS`` where ``packages`` cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, packages, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def manifest_of(folder: Path) -> ArtifactManifest:
    return ArtifactManifest.from_bytes((folder / "manifest.json").read_bytes())


def test_export_of_an_own_model_writes_what_it_tells(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    outcome = command("export", "--model", SMALL, *OWN, "--out", out, "--json")
    assert outcome.status == 0, outcome.err
    line = outcome.line
    assert line["schema"] == "apportion.export/1"
    assert line["programs"] == ["train", "eval"]
    assert line["parameters"] == line["trained_parameters"] == 8 * 6 + 6 + 6 * 3 + 3
    assert line["files"] == {p.name: p.stat().st_size for p in out.iterdir() if p.name != "manifest.json"}
    assert 0 < line["max_grad_rel_err"] < 1e-5
    assert manifest_of(out).export_key == line["export_key"]


@pytest.mark.slow
def test_export_frozen_blocks_are_not_trained(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    arguments = ("--model", "resnet8", "--batch", "4", "--freeze", "2", "--out", out, "--json")
    line = command("export", *arguments).line
    specs = manifest_of(out).specs("frozen")
    assert line["parameters"] - line["trained_parameters"] == sum(s.element_count() for s in specs) > 0
    assert any(s.name.startswith("stem") or "conv" in s.name for s in specs)


def test_export_cut_is_recorded_and_smaller(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    wide = ("--model", "tests.cli.own_models:wide", *OWN)
    line = command("export", *wide, "--cut", "fedhm:4", "--out", out, "--json").line
    costs = command("costs", "--method", "fedhm", *wide, "--level", "4", "--json").line
    # Rank 16 of 64 in the middle layer: 2 * 64 * 16 weights in place of 64 * 64.
    assert line["parameters"] == costs["params"] == 8 * 64 + 64 + 2 * 64 * 16 + 64 + 64 * 3 + 3
    assert {s.name.rpartition(".")[2] for s in manifest_of(out).specs("parameter")} >= {"u", "v"}
    assert command("verify", out, "--allow-code", "--json").line["ok"] is True


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("with_sorting", "export-refused", ["layer '1'", "Sorted", "sort"]),
        ("WrongWidth", "export-refused", ["layer 'head'", "forward fails", "[2, 8]", "mat1 and mat2"]),
        ("cannot_be_built", "bad-config", ["cannot_be_built", "weights are on another disk"]),
    ],
)
def test_export_of_a_model_that_cannot_train_is_exit_2_and_says_where(
    name: str, code: str, words: list[str], command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "artifact"
    outcome = command("export", "--model", f"tests.cli.own_models:{name}", *OWN, "--out", out, "--json")
    assert outcome.status == 2
    assert outcome.error["code"] == code
    assert [word for word in words if word not in outcome.error["message"]] == []
    assert not out.exists()


def test_export_into_a_folder_with_files_leaves_them(command: Command, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    outcome = command("export", "--model", SMALL, *OWN, "--out", tmp_path, "--json")
    assert outcome.status == 2
    assert "--out" in outcome.error["message"]
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_export_into_an_empty_folder_is_allowed(command: Command, tmp_path: Path) -> None:
    assert command("export", "--model", SMALL, *OWN, "--out", tmp_path).status == 0
    assert (tmp_path / "manifest.json").is_file()


def test_verify_repeats_the_gate(artifact: Path, command: Command) -> None:
    outcome = command("verify", artifact, "--allow-code", "--json")
    assert outcome.status == 0, outcome.err
    line, parity = outcome.line, manifest_of(artifact).parity
    assert line["schema"] == "apportion.verify/1"
    assert line["checked"] == "parity"
    for key in ("max_grad_rel_err", "torch_fp32_rel_err", "loss_rel_err", "steps"):
        assert line[key] == getattr(parity, key)
    assert line["max_grad_rel_err"] <= line["tolerance"]


def test_verify_tells_people_the_same(artifact: Path, command: Command) -> None:
    outcome = command("verify", artifact, "--allow-code")
    assert outcome.status == 0
    assert f"gradients {manifest_of(artifact).parity.max_grad_rel_err:.2e} from float64" in outcome.out


def test_verify_finds_one_flipped_byte(artifact: Path, command: Command, tmp_path: Path) -> None:
    shutil.copytree(artifact, tmp_path / "flipped")
    file = tmp_path / "flipped" / "train.onnx"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    outcome = command("verify", tmp_path / "flipped", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "artifact-corrupt")
    assert "train.onnx has digest" in outcome.error["message"]


def test_verify_finds_a_missing_file(artifact: Path, command: Command, tmp_path: Path) -> None:
    shutil.copytree(artifact, tmp_path / "part")
    (tmp_path / "part" / "eval.onnx").unlink()
    outcome = command("verify", tmp_path / "part", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "artifact-corrupt")
    assert "eval.onnx" in outcome.error["message"]


def test_verify_finds_another_graph_under_a_right_digest(artifact: Path, command: Command, tmp_path: Path) -> None:
    shutil.copytree(artifact, tmp_path / "swapped")
    manifest = tmp_path / "swapped" / "manifest.json"
    text = json.loads(manifest.read_text())
    wrong = (artifact / "eval.onnx").read_bytes()
    (tmp_path / "swapped" / "train.onnx").write_bytes(wrong)
    for file in text["files"]:
        if file["name"] == "train.onnx":
            file.update(sha256=hashlib.sha256(wrong).hexdigest(), size=len(wrong))
    manifest.write_text(json.dumps(text))
    outcome = command("verify", tmp_path / "swapped", "--allow-code", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "parity-failed")


def test_verify_of_a_manifest_that_is_none_is_exit_1(command: Command, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    outcome = command("verify", tmp_path, "--json")
    assert outcome.status == 1
    assert "manifest" in outcome.error["message"]


@pytest.mark.parametrize("packages", ["torch", "torch,typer,rich,onnx,sklearn"])
def test_verify_without_torch_runs_the_self_test_and_says_so(packages: str, artifact: Path) -> None:
    done = without(packages, "verify", str(artifact), "--json")
    assert done.returncode == 0, done.stderr
    (out,) = done.stdout.splitlines()
    line = json.loads(out)
    assert line["ok"] is True
    assert (line["checked"], line["steps"]) == ("self-test", 3)
    assert line["max_grad_rel_err"] is line["torch_fp32_rel_err"] is None
    assert line["loss_rel_err"] <= line["tolerance"]
    assert "only the self-test is run" in done.stderr
    loaded = set(done.stderr.rpartition("loaded:")[2].split())
    assert loaded & {"torch", "export"} == set()
    assert "onnxruntime" in loaded


def test_verify_without_torch_finds_losses_that_are_not_the_manifests(artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(artifact, tmp_path / "wrong")
    manifest = tmp_path / "wrong" / "manifest.json"
    text = json.loads(manifest.read_text())
    text["self_test"]["losses"][2] *= 1.01
    manifest.write_text(json.dumps(text))
    done = without("torch,typer", "verify", str(tmp_path / "wrong"), "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "device-refused"
    assert "in step 2" in error["message"]


def test_device_installation_names_what_it_lacks_for_other_verbs() -> None:
    done = without("torch,typer", "export", "--model", "mlp", "--out", os.devnull)
    assert done.returncode == 2
    assert "pip install 'apportion[coordinator]'" in done.stderr
