"""The verb: what a planted machine must not give away, what is shown before it is written, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge.commands.bench_device import bench_device_command
from edge.contracts.errors import ConfigError
from edge.measuring.report import LadderArguments
from edge.measuring.results import LadderRow
from edge.sharing import sharing
from edge.sharing.anonymity import identifying
from edge.sharing.signed_file import read_shared
from profiles.system_files import SystemFiles
from tests.edge.sharing.example import row
from tests.profiles.boards import PI_4, Files, write_tree

PLANTED = {
    "/etc/hostname": "annas-kitchen\n",
    "/proc/sys/kernel/hostname": "annas-kitchen.fritz.box\n",
    "/etc/passwd": "root:x:0:0:root:/var/r:/bin/bash\nanna:x:1000:1000:Anna Karenina,,,:/var/anna:/bin/bash\n",
    "/sys/class/net/eth0/address": "dc:a6:32:0b:1c:2d\n",
    "/sys/class/net/lo/address": "00:00:00:00:00:00\n",
    "/proc/net/fib_trie": "     |-- 192.168.178.23\n        /32 host LOCAL\n     |-- 127.0.0.1\n     |-- 0.0.0.0\n",
    "/proc/net/if_inet6": "2001067c0000000000000000dca6320b 02 40 00 00 eth0\n",
    "/proc/device-tree/serial-number": "10000000a1b2c3d4\0",
    "/etc/machine-id": "0f1e2d3c4b5a69788796a5b4c3d2e1f0\n",
}
SECRETS = (
    "annas-kitchen",
    "anna",
    "karenina",
    "dc:a6:32:0b:1c:2d",
    "dca6320b1c2d",
    "192.168.178.23",
    "2001:67c",
    "a1b2c3d4",
    "0f1e2d3c4b5a",
)


def board(root: Path, **changes: str) -> Path:
    files: Files = {**PI_4, **PLANTED, **changes}
    serial = files["/proc/cpuinfo"].replace("Serial\t\t: 0000", "Serial\t\t: 10000000a1b2c3d4")
    return write_tree(root, {**files, "/proc/cpuinfo": serial, "/proc/sys/kernel/osrelease": "6.6.31-anna-home\n"})


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The climb is tested elsewhere; its rows say where the ladder lies and why one ended."""
    rows: Sequence[LadderRow] = (
        row(),
        row(threads=4, step_ms_p50=80.0, step_ms_p95=95.0),
        row(digest="b" * 64, outcome="killed", reason="killed in /var/anna/ladder on annas-kitchen"),
    )
    monkeypatch.setattr(sharing, "climbed", lambda arguments, tell: SimpleNamespace(rows=rows))


def arguments(file: Path, *, is_agreed: bool = False) -> sharing.ShareArguments:
    return sharing.ShareArguments(LadderArguments(file.parent / "anna" / "ladder"), file, is_agreed)


def test_nothing_that_identifies_leaves_a_planted_machine(tmp_path: Path) -> None:
    root, shown = board(tmp_path / "root"), list[str]()
    file = tmp_path / "pi.json"
    values = sharing.share(arguments(file, is_agreed=True), shown.append, lambda question: "", root=root)
    text = file.read_text()
    found = {value for _, value in identifying(SystemFiles(root))}
    assert {"annas-kitchen", "anna", "dc:a6:32:0b:1c:2d", "192.168.178.23", "10000000a1b2c3d4"} <= found
    for secret in (*SECRETS, *found):
        assert secret.lower() not in text.lower(), secret
    assert read_shared(file).measurement.device.known_as.startswith("pi-4")
    assert values == {"file": str(file), "rows": 3, "problems": []}


def test_the_file_is_shown_in_full_and_written_when_its_owner_agrees(tmp_path: Path) -> None:
    root, shown, asked = board(tmp_path / "root"), list[str](), list[str]()

    def answer(text: str) -> str:
        asked.append("\n".join(shown))
        return text

    file = tmp_path / "pi.json"
    values = sharing.share(arguments(file), shown.append, lambda question: answer("n\n"), root=root)
    assert values["file"] is None
    assert not file.exists()
    assert shown[-1] == "nothing is written"
    shown.clear()
    sharing.share(arguments(file), shown.append, lambda question: answer("y\n"), root=root)
    assert asked[1] == file.read_text().rstrip("\n")  # all of it, before the question
    assert json.loads(asked[1])["schema"] == "apportion.shared-measurement/1"


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("/proc/device-tree/model", "Raspberry Pi 4 Model B of Anna\0", "user name 'Anna'"),
        ("/proc/device-tree/model", "Raspberry Pi 4 Model B annas-kitchen\0", "host name 'annas-kitchen'"),
        ("/proc/device-tree/model", "Raspberry Pi 4 Model B 10000000a1b2c3d4\0", "serial number '10000000a1b2c3d4'"),
        ("/etc/os-release", 'PRETTY_NAME="image for dc:a6:32:0b:1c:2d"\n', "MAC address 'dc:a6:32:0b:1c:2d'"),
        ("/etc/os-release", 'PRETTY_NAME="image of 192.168.178.23"\n', "IP address '192.168.178.23'"),
    ],
)
def test_a_name_that_gives_its_owner_away_is_told_and_nothing_written(
    tmp_path: Path, path: str, text: str, kind: str
) -> None:
    root, file = board(tmp_path / "root", **{path: text}), tmp_path / "pi.json"
    with pytest.raises(ConfigError, match=f"the file would hold this machine's .*{kind}"):
        sharing.share(arguments(file, is_agreed=True), lambda line: None, lambda question: "y", root=root)
    assert not file.exists()


def test_names_that_many_machines_have_are_not_looked_for(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path, {**PI_4, "/etc/hostname": "debian\n", "/etc/passwd": "pi:x:1000:1000::/var/pi:/bin/sh\n"}
    )
    assert list(identifying(SystemFiles(root))) == []


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "pi.json").write_text("mine")
    with pytest.raises(ConfigError, match=r"--share: .*pi.json is there already"):
        sharing.share(arguments(tmp_path / "pi.json"), lambda line: None, lambda question: "y")
    with pytest.raises(ConfigError, match=r"is no folder that can be written"):
        sharing.share(arguments(tmp_path / "no" / "pi.json"), lambda line: None, lambda question: "y")


def test_the_verb_of_a_device_without_a_coordinator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pi.json"
    given = ["--ladder", str(tmp_path), "--share", str(file)]
    assert bench_device_command(given) == 0  # nobody can be asked here
    told = capsys.readouterr()
    assert "nobody can be asked here; --yes writes the file" in told.err
    assert '"signature"' in told.err
    assert not file.exists()
    assert bench_device_command([*given, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(file)
    assert bench_device_command(given) == 2
    assert "is there already" in capsys.readouterr().err
