"""What files are called and hold: nouns, no odds and ends, public names only in ``__init__.py``, no machine's paths."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from edge.runtimes import KNOWN
from export.formats import FORMATS

ROOT = Path(__file__).parents[2]
PACKAGES = ("profiles", "edge", "export", "coordinator", "apportion")
ODDS_AND_ENDS = {"util", "utils", "helper", "helpers", "common", "misc", "stuff", "tools"}


def python_files() -> list[Path]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if "node_modules" not in path.parts)


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def offenders(files: Iterable[Path], problem: Callable[[Path], str]) -> list[str]:
    """``<file>: <problem>`` of every file that has one."""
    found = ((path.relative_to(ROOT), problem(path)) for path in files)
    return [f"{path}: {what}" for path, what in found if what]


def problem_of_module(path: Path) -> str:
    """Why the file is badly named or does not say what it is for; empty where it does."""
    if odds := ODDS_AND_ENDS & {path.stem, *path.parent.parts}:
        return f"is named {', '.join(sorted(odds))}; name it for the one thing it holds"
    source = path.read_text(encoding="utf-8")
    if not source.strip():
        return ""
    if not ast.get_docstring(ast.parse(source)):
        return "a module says in its docstring what it is for"
    if path.name != "__init__.py" and "from __future__ import annotations" not in source.splitlines():
        return "lacks from __future__ import annotations"
    return ""


def test_file_is_named_for_one_thing_and_says_what_it_is_for() -> None:
    assert offenders(python_files(), problem_of_module) == []


def problem_of_package_file(path: Path) -> str:
    """What the file holds beside imports, the registry, the Protocol its entries follow, and look-ups of a name."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    allowed = (ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.If, ast.FunctionDef)
    if not all("Protocol" in [ast.unparse(base) for base in node.bases] for node in classes):
        return "holds a class that is no Protocol"
    if not all(isinstance(node, allowed) for node in body):
        return "holds more than names and registries"
    return "has more than two functions" if len(functions) > 2 else ""


def test_package_files_hold_names_and_registries_only() -> None:
    assert offenders((p for p in python_files() if p.name == "__init__.py"), problem_of_package_file) == []


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
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), f"{name} -> {target}"
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)


@pytest.mark.parametrize(("package", "registry"), [("coordinator.methods", "METHODS"), ("edge.runtimes", "RUNTIMES")])
def test_registry_key_is_the_file_name(package: str, registry: str) -> None:
    for name, target in getattr(importlib.import_module(package), registry).items():
        assert target.partition(":")[0].rsplit(".", 1)[-1] == name


def test_runtimes_and_formats_are_named_in_their_own_folders_alone() -> None:
    """A new one is a folder and a line of its registry; nothing else knows its name, the agents of browsers apart."""
    owners = [entry.partition(":")[0].removesuffix(".format") for entry in (*KNOWN.values(), *FORMATS.values())]
    folders = (ROOT / "edge" / "web", *(ROOT / owner.replace(".", "/") for owner in owners))
    registries = [ROOT / "edge" / "runtimes" / "__init__.py", ROOT / "export" / "formats" / "__init__.py"]
    names = re.compile(rf"\b({'|'.join({*KNOWN, *FORMATS})})\b", re.IGNORECASE)
    package = re.compile(r"^ *import \w+ as \w+$", re.MULTILINE)  # a third party's, which test_imports looks after

    def named(path: Path) -> str:
        if any(path.is_relative_to(folder) or path.with_suffix("") == folder for folder in folders):
            return ""
        found = names.findall(package.sub("", path.read_text(encoding="utf-8")))
        return ", ".join(sorted(set(found)))

    sources = (
        path for name in PACKAGES for kind in ("py", "cpp", "h", "toml") for path in (ROOT / name).rglob(f"*.{kind}")
    )
    assert offenders((p for p in sources if p not in registries and "node_modules" not in p.parts), named) == []
    for path in registries:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if names.search(line)]
        assert len(lines) == len(KNOWN if "edge" in path.parts[-3] else FORMATS), lines


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


@pytest.mark.slow
def test_nothing_is_unpickled() -> None:
    assert pickling("import pickle\nnp.load(f, allow_pickle=True)\ntorch.load(f)") == [
        "pickle",
        "np.load",
        "torch.load",
    ]
    found = {str(path.relative_to(ROOT)): pickling(path.read_text(encoding="utf-8")) for path in python_files()}
    assert {name: what for name, what in found.items() if what} == {}
