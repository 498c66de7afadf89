"""What files are called and hold: nouns, no odds and ends, public names only in ``__init__.py``, no machine's paths."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("profiles", "edge", "export", "coordinator")
ODDS_AND_ENDS = {"util", "utils", "helper", "helpers", "common", "misc", "stuff", "tools"}
MAX_LINES = 350


def python_files() -> list[Path]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if "node_modules" not in path.parts)


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_file_is_named_for_one_thing_and_not_too_long(path: Path) -> None:
    assert not ODDS_AND_ENDS & {path.stem, *path.parent.parts}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_LINES, f"{len(lines)} lines; look for a seam"
    if lines:
        assert ast.get_docstring(ast.parse("\n".join(lines))), "a module says in its docstring what it is for"
        assert path.name == "__init__.py" or "from __future__ import annotations" in lines


@pytest.mark.parametrize(
    "path", [p for p in python_files() if p.name == "__init__.py"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_package_files_hold_names_and_registries_only(path: Path) -> None:
    """Imports, the registry, the Protocol its entries follow, and at most a function or two that look a name up."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    assert all("Protocol" in [ast.unparse(base) for base in node.bases] for node in classes)
    allowed = (ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.If, ast.FunctionDef)
    assert all(isinstance(node, allowed) for node in body)
    assert len(functions) <= 2


@pytest.mark.parametrize(
    ("package", "registry"),
    [("coordinator.models", "MODELS"), ("coordinator.methods", "METHODS"), ("edge.runtimes", "RUNTIMES")],
)
def test_registry_names_are_importable_and_their_files_exist(package: str, registry: str) -> None:
    entries = getattr(importlib.import_module(package), registry)
    assert entries
    for name, entry in entries.items():
        target = entry if isinstance(entry, str) else entry.target
        module = target.partition(":")[0]
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), f"{name} -> {target}"
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)


@pytest.mark.parametrize(("package", "registry"), [("coordinator.methods", "METHODS"), ("edge.runtimes", "RUNTIMES")])
def test_registry_key_is_the_file_name(package: str, registry: str) -> None:
    for name, target in getattr(importlib.import_module(package), registry).items():
        assert target.partition(":")[0].rsplit(".", 1)[-1] == name


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    patterns = re.compile(
        r"(?<![\w.])/(?:work|home|root|Users)/[a-z]|/opt/(?:wheels|pypi)|\b(?:pypi\.org|pythonhosted)\b"
    )
    found = []
    for name in tracked():
        if name.endswith((".py", ".md", ".toml", ".html", "Makefile", "run", ".yml", ".sh", ".ts")):
            text = (ROOT / name).read_text(encoding="utf-8")
            if name != "tests/boundaries/test_names.py":
                found += [f"{name}: {line.strip()[:100]}" for line in text.splitlines() if patterns.search(line)]
    assert found == []


def pickling(source: str) -> list[str]:
    """What in ``source`` would unpickle: the modules that do, and the switches that allow it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [
                name for name in modules if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
            ]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            switches = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in {"torch.load", "joblib.load"} or switches.get("allow_pickle") == "True":
                found.append(called)
    return found


def test_nothing_is_unpickled() -> None:
    assert pickling("import pickle\nnp.load(f, allow_pickle=True)\ntorch.load(f)") == [
        "pickle",
        "np.load",
        "torch.load",
    ]
    found = {str(path.relative_to(ROOT)): pickling(path.read_text(encoding="utf-8")) for path in python_files()}
    assert {name: what for name, what in found.items() if what} == {}
