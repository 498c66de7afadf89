"""A ladder climbed on a device of the fleet book: sent, measured there, removed, and kept here as measured."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from coordinator.cli import profile_remote
from coordinator.fleet.book import FleetBook
from coordinator.fleet.host import CommandFailed, HostLost
from coordinator.fleet.installation import Installation
from edge.measuring.ladder import Ladder, Rung, ladder_path, read_ladder
from edge.measuring.report import LadderArguments
from edge.supervisor.trainer_link import child_environment
from profiles.device import DeviceProfile
from profiles.measured_lines import read_measured_lines
from profiles.stored_profile import read_profile
from tests.cli.conftest import Command
from tests.coordinator.fleet.local_host import LocalHost

INSTALLATION = Installation(device="pi-07", federation="digits", broker_url="mqtts://localhost", data="images")


@pytest.fixture
def ladder(artifact: Path, tmp_path: Path) -> Path:
    """Two rungs, of which a quick climb takes the first."""
    folder = tmp_path / "ladder"
    shutil.copytree(artifact, folder / "small")
    manifest = (artifact / "manifest.json").read_bytes()
    cost = json.loads(manifest)["cost"]
    first = Rung(
        shape="small", folder="small", digest=hashlib.sha256(manifest).hexdigest(), runtime="onnxruntime", batch=4,
        parameters=cost["parameters"], macs=cost["macs"], live_bytes=cost["live_bytes"],
        predicted_bytes=cost["predicted_peak_bytes"], graph_bytes=cost["graph_bytes"], is_quick=True,
    )  # fmt: skip
    rungs = (first, msgspec.structs.replace(first, shape="absent", folder="absent", is_quick=False))
    (folder / "absent").mkdir()
    ladder_path(folder).write_bytes(msgspec.json.encode(Ladder(rungs=rungs)))
    return folder


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    """A host with an installation whose environment is this one."""
    host = LocalHost(tmp_path / "home")
    environment = host.home / INSTALLATION.folder / "environment" / "bin"
    environment.mkdir(parents=True)
    (host.home / INSTALLATION.folder / "store").mkdir()
    python = environment / "python"
    path = child_environment().get("PYTHONPATH", "")
    device = "import sys; sys.modules['typer'] = None; from edge.__main__ import main; sys.exit(main(sys.argv[1:]))"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{path}"\n'
        f'if [ "$2" = edge ]; then shift 2; exec {sys.executable} -c "{device}" "$@"; fi\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return host


@pytest.fixture
def book(tmp_path: Path, host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> FleetBook:
    """A book with that host as pi-07."""
    book = FleetBook(tmp_path / "fleet")
    book.settle(federation="digits", broker="mqtts://localhost", identity="identity")
    book.change("pi-07", way="ssh", target="pi@host", enrolled_at=1.0, installation=asdict(INSTALLATION))
    book.keep_profile(DeviceProfile(device="pi-07", budget_bytes=123, link_bytes_per_s=5e5), method="probe")

    @contextlib.asynccontextmanager
    async def open_host(reach: object) -> AsyncIterator[LocalHost]:
        yield host

    monkeypatch.setattr(profile_remote, "open_host", open_host)
    return book


@pytest.mark.slow
def test_a_device_of_the_fleet_is_measured_by_name(
    command: Command, book: FleetBook, host: LocalHost, ladder: Path
) -> None:
    words = ["profile", "pi-07", "--fleet", book.folder, "--ladder", ladder, "--quick", "--threads", "1", "--json"]
    outcome = command(*words)
    line = outcome.line
    assert (line["method"], line["profile"]["device"]) == ("measured", "pi-07")
    (row,) = line["ladder"]["rows"]
    assert (row["shape"], row["outcome"]) == ("small", "measured")
    assert "sending a ladder" in outcome.err
    assert "small" in outcome.err
    stored = read_profile(Path(line["stored"]))
    assert (stored.method, stored.profile.runtimes.keys()) == ("measured", {"onnxruntime"})
    assert (stored.profile.budget_bytes, stored.profile.link_bytes_per_s) == (123, 5e5)
    folder = host.home / INSTALLATION.folder
    assert sorted(path.name for path in folder.iterdir()) == ["environment", "store"]
    assert (folder / "store" / "ladder-results.jsonl").exists()
    assert read_measured_lines(folder / "store").memory_lines == stored.profile.memory_lines
    shown = command("profile", "pi-07", "--fleet", book.folder)
    assert shown.status == 0
    assert "MemTotal" in shown.out
    assert command("profile", "pi-07", "--fleet", book.folder, "--json").line["method"] == "measured"


def test_a_host_that_cannot_climb_says_why_and_is_left_as_it_was(host: LocalHost, ladder: Path) -> None:
    arguments = LadderArguments(ladder, quick=True)
    (host.home / INSTALLATION.folder / "environment" / "bin" / "python").unlink()
    with pytest.raises(CommandFailed, match="ended with status 127") as failed:
        asyncio.run(profile_remote.climb_on(host, INSTALLATION, arguments, print))
    assert failed.value.hint.endswith("apportion device upgrade pi-07")
    assert sorted(path.name for path in (host.home / INSTALLATION.folder).iterdir()) == ["environment", "store"]


def test_a_connection_that_ends_is_told(host: LocalHost, ladder: Path) -> None:
    host.lost_after = 1
    with pytest.raises(HostLost, match="ended with call 2"):
        asyncio.run(profile_remote.climb_on(host, INSTALLATION, LadderArguments(ladder), print))


@pytest.mark.parametrize(
    ("changes", "words", "told"),
    [
        ({"revoked_at": 2.0}, [], "device 'pi-07' was revoked"),
        ({}, ["--keep", "store"], "its agent's own store is meant"),
        ({}, ["--rung", "7"], "7 is not a rung, the ladder has 1 to 2"),
    ],
)
def test_a_climb_there_that_cannot_be_is_exit_2(
    command: Command,
    book: FleetBook,
    host: LocalHost,
    ladder: Path,
    changes: dict[str, float],
    words: list[str],
    told: str,
) -> None:
    book.change("pi-07", **changes)
    outcome = command("profile", "pi-07", "--fleet", book.folder, "--ladder", ladder, *words, "--json")
    assert outcome.status == 2
    assert told in outcome.error["message"]
    assert host.calls == 0
    assert len(read_ladder(ladder).rungs) == 2


def test_a_device_without_a_profile_says_how_to_get_one(command: Command, book: FleetBook) -> None:
    book.change("pi-08", way="ssh", target="pi@other")
    outcome = command("profile", "pi-08", "--fleet", book.folder, "--json")
    assert outcome.status == 2
    assert "has no profile of 'pi-08'" in outcome.error["message"]
    assert "apportion device probe pi-08" in outcome.error["hint"]
