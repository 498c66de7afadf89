"""What the command says about itself: every verb has an example that can be copied."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from coordinator.cli.overview import show_overview
from coordinator.cli.verbs import GROUPS as HEADINGS
from coordinator.cli.verbs import VERBS
from edge.commands.verbs import VERBS as DEVICE_VERBS
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
    assert listed == (GROUPS[words[0]] if words else set(VERBS))
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


def test_the_list_of_verbs_is_in_named_groups_and_fits_a_terminal(command: Command) -> None:
    lines = command("--help").out.splitlines()
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    assert [line for line in lines if len(line) > 80] == []
    assert all(verbs for verbs in HEADINGS.values())
    assert set(DEVICE_VERBS) == {name for name, verb in VERBS.items() if not verb.module}


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if verb.module])
def test_every_listed_verb_is_registered_by_its_module(name: str) -> None:
    app = typer.Typer()
    importlib.import_module(VERBS[name].module).register(app)
    commands = {entry.name for entry in (*app.registered_commands, *app.registered_groups)}
    assert name in commands


def loaded(*words: str) -> set[str]:
    """Modules in a fresh process that ran ``apportion WORDS``, besides those of Python's own start."""
    code = (
        "import sys; before = set(sys.modules); from edge.__main__ import main; main(sys.argv[1:]);"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(("words", "most"), [(("--help",), 40), (("agent", "--help"), 80)], ids=["list", "agent"])
def test_help_imports_few_modules_so_that_it_comes_at_once(words: tuple[str, ...], most: int) -> None:
    found = loaded(*words)
    roots = {module.partition(".")[0] for module in found}
    assert roots - set(sys.stdlib_module_names) - {"__editable___apportion"} <= {"edge", "coordinator"}
    assert len(found) <= most, sorted(found)


@pytest.mark.parametrize(
    ("typed", "offered", "left_out"),
    [
        ("apportion ex", {"export"}, {"run"}),
        ("apportion device ad", {"add"}, {"ls"}),
        ("apportion export --m", {"--model", "--micro-batches"}, {"--out"}),
    ],
)
def test_a_shell_completes_verbs_and_options_without_torch(typed: str, offered: set[str], left_out: set[str]) -> None:
    environment = {**os.environ, "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "import sys; from edge.__main__ import main\ntry: main([])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "_APPORTION_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    found = set(done.stdout.split())
    assert offered <= found
    assert not left_out & found
    assert "False" in found


@pytest.mark.parametrize(
    ("is_terminal", "variables", "is_bold"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_headings_are_bold_on_a_terminal_that_wants_it(
    is_terminal: bool, variables: dict[str, str], is_bold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    show_overview(stream)
    assert ("\x1b[" in stream.getvalue()) is is_bold


def test_no_verb_is_exit_2_with_the_help_on_stderr(command: Command) -> None:
    outcome = command()
    assert (outcome.status, outcome.out) == (2, "")
    assert "Example: apportion" in outcome.err


def test_exit_status_is_told_in_one_place() -> None:
    from coordinator.cli import command

    assert command.__doc__
    for status in ("0 ok", "1 the job failed", "2 bad arguments", "3 connection", "4 timeout", "5 a bug of ours"):
        assert status in command.__doc__
