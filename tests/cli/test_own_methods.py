"""A method in a file outside of the tree, by path and by entry point, through conformance and a simulation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from coordinator.cli.own_code import check_code, named_by
from coordinator.conformance.methods import CHECKS
from coordinator.conformance.methods.session import check_names, run_checks, subject_of
from coordinator.methods import METHODS, Method, build_method
from coordinator.methods.own import CALLED, TRAITS
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import Update
from edge.contracts.errors import ConfigError
from tests.cli.conftest import Command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-methods.md"
CODE = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
RUN = """
[federation]
name = "own"
rounds = 2
[model]
build = "mlp"
options = {{ hidden = [8] }}
[method]
name = "{name}"
{options}
[training]
steps = 2
[data]
source = "digits"
[cohort]
[[cohort.local]]
count = 2
{more}
"""


def run_text(name: str, options: str = "", more: str = "") -> str:
    text = RUN.format(name=name, options=options, more=more)
    return text.replace("[cohort]", "[cohort]\nmin-reports = 3").replace("count = 2", "count = 4") if more else text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with the page's own example in it."""
    (tmp_path / "part_way.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def install(folder: Path, package: str, entries: dict[str, str]) -> None:
    """What an installer leaves of a package with these entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[apportion.methods]", *lines, ""]))


def one_step(name: str, options: dict[str, Any]) -> np.ndarray:
    """Where a model of zeros is after one device sent ones."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    method = build_method(name, layer, options)
    state, (level,) = method.init(), method.levels()
    update = Update("a", level, {}, {"weight": np.ones((1, 1), np.float32)}, 4)
    return method.aggregate(state, [update]).tensors["weight"]


def test_method_by_path_is_used(folder: Path) -> None:
    assert one_step("part_way:PartWay", {"share": 0.25}) == 0.25
    assert one_step("fedavg", {}) == 1.0


def test_method_by_entry_point_is_used(folder: Path) -> None:
    install(folder, "methods_of_mine", {"part_way": "part_way:PartWay"})
    assert one_step("part_way", {"share": 0.25}) == 0.25
    assert load_config_text(run_text("part_way")).method.name == "part_way"


def test_method_of_this_project_goes_before_an_entry_point(folder: Path) -> None:
    install(folder, "methods_of_mine", {"fedavg": "part_way:PartWay"})
    assert one_step("fedavg", {}) == 1.0


def test_two_packages_with_one_name_are_refused(folder: Path) -> None:
    install(folder, "mine", {"part_way": "part_way:PartWay"})
    install(folder, "yours", {"part_way": "part_way:Other"})
    with pytest.raises(ConfigError, match=r"part_way:PartWay and part_way:Other|part_way:Other and part_way:PartWay"):
        build_method("part_way", nn.Linear(1, 1), {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at_all:Method", "cannot import 'Method' from 'nowhere.at_all'"),
        ("part_way:Missing", "cannot import 'Missing' from 'part_way'"),
        ("part_way:__doc__", "is a str, a class expected"),
        ("pathlib:Path", "has no init, levels, cut_shape, program, cut, aggregate, refresh, eval_models, name"),
    ],
)
def test_what_is_no_method_is_refused(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.method\.name") as caught:
        build_method(name, nn.Linear(1, 1), {})
    assert message in str(caught.value)


def test_unknown_name_lists_installed_methods_too(folder: Path) -> None:
    install(folder, "mine", {"part_way": "part_way:PartWay"})
    with pytest.raises(ConfigError) as caught:
        load_config_text(run_text("part_wax"))
    assert "did you mean 'part_way'" in str(caught.value)
    assert "package.module:Class" in str(caught.value)
    assert all(name in str(caught.value) for name in METHODS)


def test_reading_a_run_file_imports_nothing(folder: Path) -> None:
    (folder / "loud.py").write_text("raise RuntimeError('imported')\n")
    config = load_config_text(run_text("loud:Method", more="[privacy]\nclip-norm = 1.0\nsecure-aggregation = true"))
    assert "loud" not in sys.modules
    with pytest.raises(ConfigError, match="RuntimeError: imported"):
        method_of_run(config, nn.Linear(1, 1))


def test_what_the_class_refuses_is_told_when_it_is_built(folder: Path) -> None:
    (folder / "stubborn.py").write_text(
        "from part_way import PartWay\n"
        "class Stubborn(PartWay):\n"
        "    needs_each_update = 'it sorts them'\n"
        "    refuses_rules = 'takes no other rule'\n"
    )
    for more, message in [
        ('[aggregation]\nrule = "median"', r"\$\.aggregation\.rule: method stubborn:Stubborn takes no other rule"),
        ("[privacy]\nsecure-aggregation = true", r"\$\.privacy\.secure-aggregation.*it sorts them"),
    ]:
        text = run_text("stubborn:Stubborn", more=more)
        config = load_config_text(text)
        with pytest.raises(ConfigError, match=message):
            method_of_run(config, nn.Linear(1, 1))


def test_directory_of_somebody_else_may_not_name_a_method_by_path(folder: Path) -> None:
    config = load_config_text(run_text("part_way:PartWay"))
    with pytest.raises(ConfigError, match=r"names code to run, part_way:PartWay.*--allow-code"):
        check_code(named_by(config), "here", is_allowed=False)
    check_code(named_by(load_config_text(run_text("fedavg"))), "here", is_allowed=False)


def test_what_is_asked_of_a_class_is_the_interface() -> None:
    functions = {name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")}
    assert {*CALLED} == functions
    assert {*TRAITS} == {*Method.__annotations__}


def test_own_method_holds_every_check(folder: Path) -> None:
    findings = run_checks(subject_of("part_way:PartWay"), CHECKS, tell=lambda finding: None)
    assert [f.seen for f in findings if f.outcome != "ok"] == []
    assert len(findings) == len(CHECKS)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (
            "def cut(self, state, level, **at):\n"
            "        state.tensors['fc2.bias'][:] = 0\n"
            "        return super().cut(state, level, **at)",
            "state-is-left-alone",
        ),
        (
            "def refresh(self, state):\n"
            "        self.count = getattr(self, 'count', 0) + 1\n"
            "        return State({k: v * self.count for k, v in state.tensors.items()}, state.extra, state.round)",
            "whole-state-is-in-the-state",
        ),
        ("def __init__(self, module, options): super().__init__(module, {})", "unknown-options-are-refused"),
        ("def levels(self): return super().levels() * 2", "levels-are-a-ladder"),
    ],
)
def test_faulty_method_is_found_out(folder: Path, fault: str, check: str) -> None:
    (folder / "faulty.py").write_text(
        "from part_way import PartWay\nfrom coordinator.submodels.values import State\n"
        f"class Faulty(PartWay):\n    {fault}\n"
    )
    findings = run_checks(subject_of("faulty:Faulty"), check_names([check]), tell=lambda finding: None)
    assert [(f.scenario, f.outcome) for f in findings] == [(check, "failed")]


@pytest.mark.slow
def test_installed_method_goes_through_conformance_and_a_simulated_run(folder: Path, command: Command) -> None:
    install(folder, "methods_of_mine", {"part_way": "part_way:PartWay"})
    path = folder / "run.toml"
    path.write_text(run_text("part_way", "share = 0.25"))
    told = command("conformance", "--method", "part_way", "--config", path, "--json").line
    assert told["ok"]
    assert told["held"] == len(CHECKS)
    run = command("simulate", path, "--run-dir", folder / "run", "--quiet", "--json").line
    assert run["ok"]
    assert run["rounds"] == 2


def test_conformance_of_a_method_is_told_and_listed(folder: Path, command: Command) -> None:
    (folder / "deaf.py").write_text(
        "from part_way import PartWay\nclass Deaf(PartWay):\n"
        "    def __init__(self, module, options): super().__init__(module, {})\n"
    )
    told = command("conformance", "--method", "deaf:Deaf", "--only", "unknown-options-are-refused", "--json")
    assert told.status == 1
    assert "1 of 1 checks of the method failed: unknown-options-are-refused" in told.error["message"]
    assert len(command("conformance", "--method", "fedavg", "--list", "--json").line["checks"]) == len(CHECKS)
    wrong = command("conformance", "--method", "fedavg", "--only", "no-such", "--json")
    assert wrong.status == 2
    assert "state-is-left-alone" in wrong.error["message"]
    assert command("conformance", "--config", folder / "run.toml", "--json").status == 2
