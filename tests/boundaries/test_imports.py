"""Which package may import which, what the device never imports, and what importing a package must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH_SIDE = {
    "torch",
    "torchvision",
    "torchaudio",
    "onnx",
    "executorch",
    "sklearn",
    "scipy",
    "amqtt",
    "typer",
    "rich",
    "starlette",
    "uvicorn",
}
RUNTIMES = {"onnxruntime", "executorch", "tflite_runtime", "ai_edge_litert"}
CONTRACTS_MAY_IMPORT = {"edge", "profiles", "msgspec", "numpy", "safetensors"}
HEAVY = {
    "torch",
    "onnx",
    "onnxruntime",
    "numpy",
    "scipy",
    "sklearn",
    "amqtt",
    "paho",
    "cryptography",
    "PIL",
    "typer",
    "starlette",
    "uvicorn",
}

Import = tuple[str, bool]
"""Dotted module, and whether it is imported when the file is (not inside a function or for types only)."""


def files(*packages: str) -> list[Path]:
    found = sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))
    found = [path for path in found if "node_modules" not in path.parts]  # other people's, of the web agent's tools
    assert found
    return found


def imports(path: Path) -> list[Import]:
    """Every import of a file, in functions too."""
    found: list[Import] = []

    def visit(node: ast.AST, is_loaded: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inside = is_loaded and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inside = False
            if isinstance(child, ast.Import):
                found.extend((alias.name, is_loaded) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
                found.append((child.module, is_loaded))
            visit(child, inside)

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


def roots(path: Path) -> set[str]:
    return {module.split(".")[0] for module, _ in imports(path)}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in ``sys.modules`` of a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_rules_of_pyproject_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " kept, 0 broken" in done.stdout


def test_import_finder_sees_nested_imports(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import a.b\ndef f():\n    from c import d\nif TYPE_CHECKING:\n    import e\n")
    assert imports(tmp_path / "x.py") == [("a.b", True), ("c", False), ("e", False)]


@pytest.mark.parametrize("path", files("edge", "profiles"), ids=lambda p: str(p.relative_to(ROOT)))
def test_device_side_never_imports_torch_or_the_server(path: Path) -> None:
    forbidden = roots(path) & (TORCH_SIDE | {"coordinator", "export"})
    is_the_door = path == ROOT / "edge" / "__main__.py"
    # The one command starts here for both sides; the agent's verb returns before the server's packages are imported.
    assert not forbidden - ({"coordinator"} if is_the_door else set()), forbidden


@pytest.mark.parametrize("path", files("profiles"), ids=lambda p: str(p.relative_to(ROOT)))
def test_profiles_import_nothing_of_the_project(path: Path) -> None:
    assert roots(path) & {"edge", "export", "coordinator"} == set()


@pytest.mark.parametrize("path", files("edge/contracts"), ids=lambda p: p.name)
def test_contracts_import_only_what_a_contract_needs(path: Path) -> None:
    foreign = roots(path) - CONTRACTS_MAY_IMPORT - set(sys.stdlib_module_names)
    assert foreign == set()
    inside = {module for module, _ in imports(path) if module.startswith("edge.")}
    assert all(module.startswith("edge.contracts") for module in inside), inside


@pytest.mark.parametrize("path", files("edge", "coordinator", "profiles"), ids=lambda p: str(p.relative_to(ROOT)))
def test_runtimes_are_imported_in_their_own_file_only(path: Path) -> None:
    third_party = {module.split(".")[0] for module, _ in imports(path)} & RUNTIMES
    if path.parent == ROOT / "edge" / "runtimes":
        assert len(third_party) <= 1, f"{path.name} imports {third_party}; one runtime per file"
    elif path.parent != ROOT / "coordinator" / "cli":
        assert third_party == set(), f"{path.relative_to(ROOT)} imports {third_party}; edge/runtimes wraps it"


@pytest.mark.parametrize("path", files("coordinator"), ids=lambda p: str(p.relative_to(ROOT)))
def test_coordinator_leaves_runtime_toolchains_to_export(path: Path) -> None:
    if path.parent != ROOT / "coordinator" / "cli":
        assert roots(path) & {"onnx", "executorch"} == set()


@pytest.mark.parametrize(
    "package",
    [
        "profiles",
        "edge",
        "edge.contracts",
        "edge.transport",
        "edge.runtimes",
        "export",
        "coordinator",
        "coordinator.cli",
        "coordinator.models",
        "coordinator.methods",
        "coordinator.aggregation",
        "coordinator.identity",
        "coordinator.submodels",
        "coordinator.web",
    ],
)
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    # A command line is made of its framework.
    allowed = {"typer"} if package == "coordinator.cli" else set()
    assert loaded_by(f"import {package}") & HEAVY - allowed == set()


def test_every_contract_loads_without_numpy() -> None:
    names = [f"edge.contracts.{path.stem}" for path in files("edge/contracts") if path.stem != "__init__"]
    loaded = loaded_by(f"import {', '.join(names)}")
    assert loaded & (HEAVY | {"safetensors", "zstandard"}) == set()


def test_supervisor_loads_no_numpy_no_runtime_and_no_torch() -> None:
    loaded = loaded_by("import edge.agent, edge.__main__")
    assert loaded & {"numpy", "torch", "onnxruntime", "coordinator", "export"} == set()
    assert "edge" in loaded
