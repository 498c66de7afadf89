"""The files for Slurm and Kubernetes: their shells parse, and what refers to each other does."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "clusters"
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


def documents() -> dict[str, dict[str, Any]]:
    """Kind -> object of the manifest."""
    found = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))
    return {document["kind"]: document for document in found}


def pod(kind: str) -> dict[str, Any]:
    template: dict[str, Any] = documents()[kind]["spec"]["template"]
    return template


def parses(script: str) -> bool:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    return subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_the_batch_script_parses() -> None:
    assert parses((FOLDER / "simulate.sbatch").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_the_pods_commands_parse_and_their_volumes_are_there(kind: str) -> None:
    spec = pod(kind)["spec"]
    (container,) = spec["containers"]
    assert parses(container["args"][0])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_the_trainers_find_the_head_by_its_service() -> None:
    found = documents()
    assert set(found) == {"Service", "PersistentVolumeClaim", "Job", "Deployment"}
    name, port = found["Service"]["metadata"]["name"], found["Service"]["spec"]["ports"][0]["port"]
    assert f"--address={name}:{port} " in pod("Deployment")["spec"]["containers"][0]["args"][0]
    assert f"--port={port} " in pod("Job")["spec"]["containers"][0]["args"][0]
    assert pod("Job")["metadata"]["labels"] == found["Service"]["spec"]["selector"]
    assert pod("Deployment")["metadata"]["labels"] == found["Deployment"]["spec"]["selector"]["matchLabels"]
    claims = [
        v["persistentVolumeClaim"]["claimName"] for v in pod("Job")["spec"]["volumes"] if "persistentVolumeClaim" in v
    ]
    assert claims == [found["PersistentVolumeClaim"]["metadata"]["name"]]


@pytest.mark.parametrize("name", ["simulate.sbatch", "kubernetes.yaml"])
def test_the_options_of_simulate_are_there(name: str) -> None:
    from coordinator.cli import simulate

    known = Path(simulate.__file__).read_text(encoding="utf-8")
    text = (FOLDER / name).read_text(encoding="utf-8").replace("\\\n", " ")
    (call,) = re.findall(r"apportion simulate \S+ (.*)", text)
    for option in re.findall(r"--([a-z-]+)", call):
        assert f'"--{option}"' in known or f"{option.replace('-', '_')}: Annotated" in known
