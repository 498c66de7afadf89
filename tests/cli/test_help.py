"""What the command says about itself: every verb has an example that can be copied."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from coordinator.cli.command import VERBS
from edge.contracts.release import PYTHONS, RELEASE
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
IDENTITY = (
    *("init", "issue-server", "issue-coordinator", "sign", "revoke", "rotate", "signing-key", "crl", "ls", "token"),
    *("mosquitto", "rabbitmq"),
)
FLEET = ("add", "ls", "probe", "logs", "upgrade", "revoke", "claims")
GROUPS: dict[str, set[str]] = {
    "audit": {"show", "export", "verify"},
    "bench": {"device", "step"},
    "ca": set(IDENTITY),
    "device": set(FLEET),
}
LEAVES = [[verb] for verb in VERBS if verb not in GROUPS] + [[g, leaf] for g in GROUPS for leaf in sorted(GROUPS[g])]
LEAVES += [["agent"], ["csr"], ["enrol"], ["predict"], ["relay"], ["release"]]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_help_ends_with_an_example_of_the_verb_and_options_it_has(words: list[str], command: Command) -> None:
    outcome = command(*words, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    shown, _, example = outcome.out.lower().rpartition("example:")
    arguments = shlex.split(example.replace("\\\n", " "))
    assert arguments[: len(words) + 1] == ["apportion", *words]
    options = [a for a in arguments if a.startswith("--")]
    assert [o for o in options if not re.search(rf"{o}\b", shown)] == []
    files = [a for a in arguments if a.endswith(".toml")]
    assert [f for f in files if not (ROOT / f).is_file()] == []


@pytest.mark.parametrize("words", [[], ["audit"], ["bench"], ["ca"], ["device"]])
def test_help_of_a_group_lists_its_verbs_and_ends_with_an_example(words: list[str], command: Command) -> None:
    outcome = command(*words, "--help")
    assert outcome.status == 0
    listed = set(re.findall(r"^  ([a-z][a-z-]+)  ", outcome.out, re.MULTILINE))
    assert listed == (GROUPS[words[0]] if words else {*VERBS, "agent", "csr", "enrol", "predict", "relay", "release"})
    assert outcome.out.strip().splitlines()[-1].strip().startswith("Example: apportion")


def test_release_is_told_by_the_command_with_and_without_a_coordinator(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("--version").out == f"apportion {RELEASE}\n"
    monkeypatch.setitem(sys.modules, "coordinator.cli", None)
    assert command("--version").out == f"apportion {RELEASE}\n"


def test_page_for_phones_is_of_the_same_release() -> None:
    package = json.loads((ROOT / "edge" / "web" / "package.json").read_text())
    assert package["version"] == re.sub(r"\.dev", "-dev.", RELEASE)


def test_pip_and_every_check_of_a_python_name_the_same_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert named == [f"{major}.{minor}" for major, minor in PYTHONS]
    assert project["requires-python"] == ">={}.{},<{}.{}".format(*PYTHONS[0], PYTHONS[-1][0], PYTHONS[-1][1] + 1)
    for path in ("Makefile", ".ci/run"):
        text = (ROOT / path).read_text()
        assert f"not {PYTHONS[0]} <= sys.version_info[:2] <= {PYTHONS[-1]}" in text
        assert f"python3 {' '.join(f'python{name}' for name in named)};" in text


def test_help_and_completion_load_no_torch() -> None:
    shown = "import sys; from edge.__main__ import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", shown], stdout=subprocess.DEVNULL, cwd=ROOT).returncode == 0


def test_no_verb_is_exit_2_with_the_help_on_stderr(command: Command) -> None:
    outcome = command()
    assert (outcome.status, outcome.out) == (2, "")
    assert "Example: apportion" in outcome.err


def test_exit_status_is_told_in_one_place() -> None:
    from coordinator.cli import command

    assert command.__doc__
    for status in ("0 ok", "1 the job failed", "2 bad arguments", "3 connection", "4 timeout", "5 a bug of ours"):
        assert status in command.__doc__
