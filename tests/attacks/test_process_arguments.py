"""No token and no password is among the arguments of a process: everyone on the machine can list these."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.opening import BrokerProcess
from edge.__main__ import main
from edge.contracts.claims import ClaimLink
from tests.coordinator.fleet.test_install_script import identity as identity
from tests.coordinator.fleet.test_install_script import script
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t-0f-th1s-test-and-n0-0ther".ljust(43, "z")


def shown() -> str:
    """The arguments of every process of this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue  # it has ended
    return "\n".join(found)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that lets clients wait."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


def link_to(server: socket.socket) -> str:
    port = server.getsockname()[1]
    link = ClaimLink(f"https://127.0.0.1:{port}", f"0123456789abcdef.{SECRET}", "a" * 64, "pi-07").to_text()
    assert SECRET in link
    return link


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stdin", "file", "script"])
def test_claim_token_is_in_no_process_arguments(
    way: str, silent: socket.socket, tmp_path: Path, identity: Path
) -> None:
    link = link_to(silent)
    out = ["--out", str(tmp_path / "new")]
    command = [sys.executable, "-m", "edge", "enrol"]
    stdin = subprocess.DEVNULL
    if way == "stdin":
        command, stdin = [*command, "-", *out], subprocess.PIPE
    elif way == "file":
        (tmp_path / "link").write_text(link + "\n")
        command = [*command, "--link-file", str(tmp_path / "link"), *out]
    else:
        (line,) = re.findall(r"^printf .* enrol - .*$", script(tmp_path, identity, link=link).text(), re.MULTILINE)
        line = line.replace("environment/bin/python", sys.executable).replace("--out identity", f"--out {out[1]}")
        (tmp_path / "part").write_text(line)
        command = ["sh", str(tmp_path / "part")]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        if process.stdin is not None:
            process.stdin.write(f"{link}\n".encode())
            process.stdin.close()
        connection, _ = silent.accept()
        with connection:
            assert "edge enrol" in shown()
            assert SECRET not in shown()
        silent.close()
        process.kill()


def test_link_as_an_argument_is_still_taken_and_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        link = link_to(gone)
    assert main(["enrol", link, "--out", str(tmp_path / "identity")]) == 3
    told = capsys.readouterr().err
    assert "is shown to everyone who can list this machine's processes" in told
    assert "--link-file FILE" in told
    assert SECRET not in told


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_brokers_password_is_in_no_process_arguments(kind: str, tmp_path: Path) -> None:
    from coordinator.brokers.mosquitto import find_mosquitto

    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    with BrokerProcess(kind, tmp_path / "broker", user="lab", password=SECRET) as process:
        wait_until(lambda: process.address.url, "the broker")
        assert SECRET not in shown()
        assert SECRET not in "\n".join(os.environ.values())


@pytest.mark.parametrize("verb", ["agent"])
def test_password_in_an_address_is_told(verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    address = f"mqtt://pi-07:{SECRET}@127.0.0.1:1"
    # The store's folder is a file: it ends before it connects.
    (tmp_path / "store").write_text("")
    main(
        [
            verb,
            "--broker",
            address,
            "--federation",
            "f",
            "--device",
            "pi-07",
            "--data",
            "x",
            "--store",
            str(tmp_path / "store"),
            "--budget-mb",
            "-1",
        ]
    )
    told = capsys.readouterr().err
    assert "a password in --broker is shown to everyone" in told
    assert "APPORTION_BROKER_PASSWORD" in told
    assert SECRET not in told
