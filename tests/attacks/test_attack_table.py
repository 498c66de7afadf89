"""The tables of the threat model: every test they name exists, asserts something, and is not switched off.

Every adversary has something that it can do, and something that it cannot, with a test; every finding of the reviews
has its row among the attacks.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[a-z0-9_/]+\.py)(?:::(test_[a-z0-9_]+))?`", PAGE)))
TABLES = {
    title: [[cell.strip() for cell in line[2:-2].split(" | ")] for line in body.splitlines() if line.startswith("| ")]
    for title, _, body in (part.partition("\n") for part in PAGE.split("\n## ")[1:])
}
"""Heading -> rows of the tables under it, with their own headings."""
ADVERSARIES = (
    "the network",
    "a device",
    "a group of devices below the threshold",
    "a stolen device",
    "a relay",
    "the broker",
    "a curious coordinator",
    "the coordinator's disk",
    "a run file",
    "a model",
    "an artifact",
    "a hostile page",
)
FINDINGS = {
    "masks and keys of an earlier run": "what was said, signed or masked in an earlier run",
    "a zero key": "a masking key of small order",
    "bad shares, a wrong weight or nothing": "a masking key of small order, shares of noise",
    "a broker that stands in": "a broker that changes keys, rosters, shares",
    "a second sum after a reveal": "a second sum of one model",
    "a hello that makes the quantum coarse": "a hello of 2^40 examples",
    "2^63 in a hello or a report": "figures that no device has",
    "a hello of no examples and a report of many": "a hello of no examples",
    "weights that stop a method's sum": "weights that are finite and overflow",
    "offers under new digests": "an offer under ever new digests",
    "the artifact's digest, offered to a relay": "an update under the digest of what the site was sent",
    "queues of block requests": "requests for blocks without end",
    "a retained flood": "retained messages without end",
    "combinations that do nothing": "switches that say nothing of a masked sum",
    "connections that block all enrolment": "200 sockets, or 700, that reconnect",
    "messages and bytes of one device": "a flood of one device",
    "a full disk": "a disk that is full",
    "one colluding device and one drop-out": "helpers kept away",
    "blobs of others by digest": "another device's update, or weights of a cut",
    "a relay that evicts the coordinator's key": "a relay's key used for a manifest",
    "code that an artifact or a run names": "an artifact, a run's directory or a ledger that names code",
    "a population of devices that say hello": "devices that only say hello",
    "thin coverage": "one device at full width among many",
    "control characters": "control characters in what a device says",
    "a false peak": "a false peak of memory",
    "a kill between tables and first row": "a kill between a ledger's tables",
    "fsync after EIO": "a disk that is full, or fails",
    "garbage collection against another's start": "a leader that was followed",
    "two runs of one S3 prefix": "two runs at one S3 prefix",
    "tokens in arguments": "whoever lists the processes",
    "an unsigned grant": "a grant, blocks or messages without end",
    "an audit log": "an entry of the audit log",
    "a site's policy": "an order that a device's owner",
    "a Byzantine member in chaos": "a member that lies in a run",
    "one misdealer and one silent reporter": "a member that misdeals beside one that is away",
    "a forged order before the true one": "an order that is forged under the id",
    "a lost dispute": "a dispute that is lost",
    "a device without a certificate": "a device without a certificate in a masked run",
    "what a device keeps of orders": "orders without end, at a device with a policy",
    "the relay's own durable writes": "a disk that is full under a policy's account",
}
"""What a hostile review found -> how its row among the attacks begins."""
LIMITS = re.findall(r"^\| [^|]+ \| [^|]+ \| (`[^|]+`) \|$", PAGE, re.MULTILINE)


def test_table_is_there() -> None:
    assert len(NAMED) > 40
    assert len(LIMITS) > 8


@pytest.mark.parametrize("who", ADVERSARIES)
def test_every_adversary_can_something_and_cannot_something_with_a_test(who: str) -> None:
    (can,) = [row for row in TABLES["Who may be against us"] if row[0] == who]
    assert len(can) == 2
    assert len([row for row in TABLES["What they cannot do"] if row[0] == who]) >= 2


def test_everything_that_they_cannot_has_its_own_test() -> None:
    known = {row[0] for row in TABLES["Who may be against us"][1:]}
    rows = TABLES["What they cannot do"][1:]
    assert {row[0] for row in rows} == known
    without = [row[:2] for row in rows if len(row) != 3 or "::test_" not in row[2]]
    assert without == []


@pytest.mark.parametrize("finding", FINDINGS)
def test_finding_has_its_row_among_the_attacks(finding: str) -> None:
    rows = [row for row in TABLES["Attacks, each with its test"] if row[0].startswith(FINDINGS[finding])]
    assert [row for row in rows if "`tests/" in row[-1]], f"no row begins with '{FINDINGS[finding]}'"


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_named_test_exists_and_checks_something(file: str, name: str) -> None:
    path = ROOT / file
    assert path.is_file()
    if not name or file == "tests/attacks/test_attack_table.py":
        return
    functions = {n.name: n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}
    assert name in functions, f"{file} has no {name}"
    function = functions[name]
    marks = [ast.unparse(decorator) for decorator in function.decorator_list]
    assert not [mark for mark in marks if mark.startswith("pytest.mark.skip(") or "xfail" in mark]
    text = ast.unparse(function)
    assert "assert " in text or "pytest.raises" in text


@pytest.mark.parametrize("cell", LIMITS)
def test_file_of_a_limit_exists(cell: str) -> None:
    for file in re.findall(r"`([a-z_/]+\.py)`", cell):
        assert (ROOT / file).is_file(), file
