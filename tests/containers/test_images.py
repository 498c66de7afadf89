"""The container files: each of their steps, and what is in the images."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.contracts.release import RELEASE
from tests.containers.builder import FILES, Builder
from tests.coordinator.fleet.private_namespace import Unavailable
from tests.device_installation import copy_sources

pytestmark = pytest.mark.slow

AGENT, COORDINATOR = FILES / "agent.Containerfile", FILES / "coordinator.Containerfile"


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    try:
        made = Builder(tmp_path / "builder")
    except Unavailable as reason:
        pytest.skip(str(reason))
    (tmp_path / "builder").mkdir()
    try:
        yield made
    finally:
        made.close()


def build_wheel(folder: Path) -> Path:
    """The folder ``dist`` with this checkout's wheel, as ``make wheel`` leaves it."""
    words = ["-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([sys.executable, *words, str(folder / "dist"), str(copy_sources(folder / "source"))], check=True)
    return folder / "dist"


def first_image(file: Path) -> str:
    """The one that ``file`` begins with where nothing else is said."""
    found = re.search(r"^ARG PYTHON=(\S+)$", file.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_both_files_begin_with_one_image_that_is_there_for_both_processors() -> None:
    assert first_image(AGENT) == first_image(COORDINATOR) == "docker.io/library/python:3.13-slim-trixie"
    for file in (AGENT, COORDINATOR):
        text = file.read_text()
        assert not re.search(r"amd64|x86_64|aarch64|arm64", re.sub(r"^#.*$", "", text, flags=re.MULTILINE))
        assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1000:1000"]


def test_agent_image_is_small_has_no_torch_and_sees_an_agent_that_hangs(builder: Builder, tmp_path: Path) -> None:
    dist = build_wheel(tmp_path)
    try:
        builder.make_base(first_image(AGENT), "trixie")
    except Unavailable as reason:
        pytest.skip(str(reason))
    began = time.monotonic()
    builder.build(AGENT, dist, "apportion-agent")
    print(f"the agent's image was built in {time.monotonic() - began:.0f} s")
    settings = json.loads(builder.run("inspect", "--type", "image", "apportion-agent"))["Docker"]["config"]
    assert (settings["User"], settings["Entrypoint"]) == ("1000:1000", ["apportion"])
    assert list(settings["Volumes"]) == ["/srv/device"]

    container = builder.container("apportion-agent")
    assert builder.inside(container, ["apportion", "--version"]) == f"apportion {RELEASE}\n"
    names = ("onnxruntime", "cryptography", "torch", "pip")
    tell = f"import importlib.util as u, os; print(os.getuid(), *(bool(u.find_spec(n)) for n in {names}))"
    said = builder.inside(container, ["/opt/apportion/bin/python", "-c", tell])
    assert said.split() == ["1000", "True", "True", "False", "False"]
    builder.inside(container, ["sh", "-c", "touch /srv/device/mine && ! touch /opt/apportion/mine"])
    size = int(builder.inside(container, ["du", "-sm", "/opt/apportion"]).split()[0])
    print(f"/opt/apportion has {size} MB")
    assert size < 300  # 204 MB measured; torch alone would be 700

    kind, *check = settings["Healthcheck"]["Test"]
    assert kind == "CMD"
    signs = tmp_path / "signs"
    signs.mkdir()
    (signs / "alive").touch()
    check = [word.replace("/tmp/alive", "/signs/alive") for word in check]
    builder.inside(container, check, f"{signs}:/signs:ro")
    os.utime(signs / "alive", (time.time() - 300.0,) * 2)
    with pytest.raises(AssertionError, match="exit status 1"):
        builder.inside(container, check, f"{signs}:/signs:ro")
