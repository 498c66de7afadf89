"""The Ansible playbook, run by ansible-core; ``apportion`` is a program that writes down what it was asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/ansible"
RECORDS = """#!/bin/sh
printf '%s\\n' "$*" >> "$RECORD"
case "$*" in *--device=pi-07*) changed='["wheels"]' ;; *) changed='[]' ;; esac
echo "{\\"ok\\": true, \\"devices\\": [{\\"changed\\": $changed}]}"
"""


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of ansible-core's scripts, in an environment of its own."""
    folder = tmp_path_factory.mktemp("ansible") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "ansible-core"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package index has ansible-core: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin"


@pytest.mark.slow
def test_playbook_makes_a_device_of_every_host_and_tells_what_changed(ansible: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program, record = tmp_path / "bin/apportion", tmp_path / "record"
    program.write_text(RECORDS)
    program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{ansible}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "RECORD": str(record),
        "HOME": str(tmp_path),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    command = [str(ansible / "ansible-playbook"), "-i", str(EXAMPLES / "inventory.yml"), str(EXAMPLES / "devices.yml")]
    # Ansible ends at once where its input does not block, as that of whoever runs the tests may not.
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    recap = dict(re.findall(r"^(pi-\d+) +: (ok=\d+ +changed=\d+)", done.stdout, re.MULTILINE))
    assert {host: counts.split() for host, counts in recap.items()} == {
        "pi-07": ["ok=1", "changed=1"],
        "pi-08": ["ok=1", "changed=0"],
    }
    asked = sorted(record.read_text().splitlines())
    assert asked[0] == (
        "device add pi@pi-07.local:22 --device=pi-07 --data=~/data --federation=digits "
        "--broker=mqtts://coord.local:8883 --identity=identity --broker-folder=broker --budget-mb=160 --json"
    )
    assert "--device=pi-08" in asked[1]
    assert "--budget-mb=96" in asked[1]


@pytest.mark.slow
def test_options_of_the_playbook_are_the_command_s() -> None:
    words = [sys.executable, "-m", "edge", "device", "add", "--help"]
    known = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    used = re.findall(r'- "?(--[a-z-]+)', (EXAMPLES / "devices.yml").read_text())
    assert len(used) == 8
    assert [option for option in used if option not in known] == []
