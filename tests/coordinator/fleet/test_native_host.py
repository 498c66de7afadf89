"""``apportion device add`` on hosts that cannot become devices, over a real sshd: what is said; nothing is left.

What no test machine has (a 32-bit system, another processor, an old C library, no Python) is a program of the test that
the session finds first and that says so; see also test_facts.py for more of them without a network between.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.fleet.facts import PYTHON_NAMES
from coordinator.identity.authority import Authority
from edge.__main__ import main
from tests.coordinator.fleet.conftest import StartSshd
from tests.coordinator.fleet.ssh_server import SshServer, make_key

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

NO_PYTHON = dict.fromkeys(PYTHON_NAMES.split(), "exit 127")
OLD_GLIBC = dict.fromkeys(NO_PYTHON, "echo '3.11.2;64;1;glibc 2.24;/usr/bin/python3'")


@dataclass(frozen=True)
class Bad:
    """A host or a command that cannot work.

    Attributes:
        programs: the session finds them before its own.
        options: in place of the right ones; ``KEY`` is a key that nobody knows there.
        says, advises: words of the message and of the hint.
    """

    status: int
    code: str
    says: str
    advises: str
    programs: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


BAD = {
    "wrong key": Bad(3, "host-unreachable", "does not let us in", "ssh-copy-id", options={"--key": "KEY"}),
    "host key not accepted": Bad(
        3, "host-unreachable", "is not known yet", "--accept-host-key", options={"--accept-host-key": ""}
    ),
    "another host key": Bad(
        3,
        "host-unreachable",
        "not SHA256:another, which was accepted",
        "--accept-host-key",
        options={"--accept-host-key": "SHA256:another"},
    ),
    "32-bit system": Bad(1, "host-unfit", "32-bit", "64-bit", {"uname": "echo armv7l"}),
    "another processor": Bad(1, "host-unfit", "riscv64", "64-bit ARM or x86", {"uname": "echo riscv64"}),
    "old glibc": Bad(1, "host-unfit", "glibc 2.24", "upgrade", OLD_GLIBC),
    "no Python": Bad(1, "host-unfit", "no Python", "apt install python3", NO_PYTHON),
}


def add_command(server: SshServer, folder: Path, options: dict[str, str]) -> list[str]:
    """The command, with ``options`` in place of the right ones."""
    right = {
        "--port": str(server.port),
        "--key": str(server.keys.client),
        "--accept-host-key": server.keys.fingerprint,
        "--device": "pi-07",
        "--data": "~/images",
        "--federation": "demo",
        "--broker": "mqtts://localhost:1",
        "--identity": str(folder / "identity"),
        "--fleet": str(folder / "fleet"),
    }
    words = ["device", "add", f"{server.user}@{server.host}", "--no-wait", "--json"]
    for name, value in {**right, **options}.items():
        words += [name, value] if value else []
    return words


@pytest.mark.parametrize("case", BAD)
def test_bad_host_is_told_and_left_as_it_was(
    start_sshd: StartSshd, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    bad = BAD[case]
    Authority.create(tmp_path / "identity").close()
    stranger = str(make_key(tmp_path / "stranger"))
    options = {name: stranger if value == "KEY" else value for name, value in bad.options.items()}
    with start_sshd(programs=bad.programs) as server:
        (server.home / "images").mkdir()
        before = server.listing()
        status = main(add_command(server, tmp_path, options))
        assert server.listing() == before
    told = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
    assert (status, told["ok"], told["error"]["code"]) == (bad.status, False, bad.code)
    assert bad.says in told["error"]["message"]
    assert bad.advises in told["error"]["hint"]
    with Authority(tmp_path / "identity") as authority:
        assert authority.records.certificates() == []
