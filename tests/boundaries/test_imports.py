"""Which package may import which, what the device never imports, and what importing a package must not load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

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
LIGHT = (
    *("profiles", "edge", "edge.contracts", "edge.transport", "edge.runtimes", "export", "apportion"),
    *(f"coordinator.{name}" for name in ("models", "methods", "aggregation", "identity", "submodels", "web")),
)
"""Packages of which a name alone is asked for at times."""

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


RUNTIME_USERS = [
    path for path in files("edge", "coordinator", "profiles") if path.parent != ROOT / "coordinator" / "cli"
]


def roots(path: Path) -> set[str]:
    return {module.split(".")[0] for module, _ in imports(path)}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in ``sys.modules`` of a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_finder_sees_nested_imports(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import a.b\ndef f():\n    from c import d\nif TYPE_CHECKING:\n    import e\n")
    assert imports(tmp_path / "x.py") == [("a.b", True), ("c", False), ("e", False)]


def offenders(found: dict[Path, Collection[str]]) -> dict[str, list[str]]:
    """Of every file that imports what it must not: what."""
    return {str(path.relative_to(ROOT)): sorted(what) for path, what in found.items() if what}


def test_no_circle_leads_through_a_package_either() -> None:
    """``import a.b`` runs ``a/__init__`` first, so whatever that imports must not import from ``a``."""
    graph = grimp.build_graph("profiles", "edge", "export", "coordinator", "apportion", cache_dir=None)
    needs = {}
    for name in graph.modules:
        used = [found.split(".") for found in graph.find_modules_directly_imported_by(name)]
        needs[name] = {".".join(parts[:length]) for parts in used for length in range(1, len(parts) + 1)} - {name}
    TopologicalSorter(needs).prepare()  # a circle is an error that names its modules


def test_device_side_never_imports_torch_or_the_server() -> None:
    found = {path: roots(path) & (TORCH_SIDE | {"coordinator", "export"}) for path in files("edge", "profiles")}
    # The one command starts here for both sides; the agent's verb returns before the server's packages are imported.
    found[ROOT / "edge" / "__main__.py"] -= {"coordinator"}
    assert offenders(found) == {}


def test_profiles_import_nothing_of_the_project() -> None:
    assert offenders({path: roots(path) & {"edge", "export", "coordinator"} for path in files("profiles")}) == {}


def test_contracts_import_only_what_a_contract_needs() -> None:
    found = {
        path: roots(path) - CONTRACTS_MAY_IMPORT - set(sys.stdlib_module_names) for path in files("edge/contracts")
    }
    assert offenders(found) == {}


def test_runtimes_are_imported_in_their_own_file_only() -> None:
    found = {path: {module.split(".")[0] for module, _ in imports(path)} & RUNTIMES for path in RUNTIME_USERS}
    wrappers = {path: names for path, names in found.items() if path.parents[1] == ROOT / "edge" / "runtimes"}
    assert {path: names for path, names in wrappers.items() if len(names) > 1} == {}, "one runtime per file"
    assert offenders({path: names for path, names in found.items() if path not in wrappers}) == {}


def test_coordinator_leaves_runtime_toolchains_to_export() -> None:
    users = [path for path in files("coordinator") if path.parent != ROOT / "coordinator" / "cli"]
    assert offenders({path: roots(path) & {"onnx", "executorch"} for path in users}) == {}


def test_importing_a_package_loads_nothing_heavy() -> None:
    assert loaded_by(f"import {', '.join(LIGHT)}") & HEAVY == set()
    assert loaded_by("import coordinator.cli.entry") & HEAVY == set()


def test_the_api_loads_nothing_until_a_name_is_used() -> None:
    loaded = loaded_by("import apportion; apportion.NAMES; dir(apportion)")
    assert loaded & {"coordinator", "edge", "export", "profiles", "msgspec"} == set()
    # A table of a run file is one without what trains it.
    assert loaded_by("import apportion; apportion.Train(lr=0.1), apportion.LocalDevices") & HEAVY == set()


def test_every_contract_loads_without_numpy() -> None:
    names = [f"edge.contracts.{path.stem}" for path in files("edge/contracts") if path.stem != "__init__"]
    loaded = loaded_by(f"import {', '.join(names)}")
    assert loaded & (HEAVY | {"safetensors", "zstandard"}) == set()


def test_supervisor_loads_no_numpy_no_runtime_and_no_torch() -> None:
    loaded = loaded_by("import edge.agent, edge.__main__")
    assert loaded & {"numpy", "torch", "onnxruntime", "coordinator", "export"} == set()
    assert "edge" in loaded


def test_setup_compiles_what_a_device_imports() -> None:
    # Where Python may not write compiled files, an agent compiles at each start, and takes 4 MB more for it.
    line = re.search(r"^DEVICE_COMPILED = (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert line
    foreign = {root for path in files("edge") for root in roots(path)} - sys.stdlib_module_names - {"edge", "profiles"}
    assert {"msgspec", "numpy", "paho"} <= foreign
    assert foreign <= set(line[1].split())
