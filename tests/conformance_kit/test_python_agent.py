"""The Python agent, as a process of its own behind TLS, holds a part of the kit; make test-web plays all of it."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
import time
from pathlib import Path

import pytest

from coordinator.conformance.connection import Connection
from coordinator.conformance.drivers import OWN_AGENT, AttachedDriver, CommandDriver
from coordinator.conformance.findings import NotApplicable
from coordinator.conformance.scenarios import orders, presence
from coordinator.conformance.session import KitOptions, all_scenarios, named_scenarios, run_conformance
from edge.contracts import errors
from edge.contracts.errors import ConfigError
from edge.supervisor import masked_round, settled_work
from edge.supervisor.settings import AgentSettings
from edge.system import out_of_memory
from edge.transfer import uploader
from edge.transport import blocks, mqtt, range_requests
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
PART = (
    "hello-says-who-and-what",
    "training-gives-the-reference",
    "turns-run-their-programs-in-cycles",
    "sample-alone-is-trained-on",
    "settled-order-is-refused-as-replayed",
    "cut-connection-resumes-where-it-was",
    "bulk-address-is-preferred",
    "puts-keep-to-the-granted-blocks",
    "order-over-the-budget",
    "order-changed-after-it-was-signed",
    "message-over-the-limit-is-not-read",
    "garbage-does-no-harm",
    "every-message-keeps-the-rules",
)


def connection(**changes: object) -> Connection:
    values = {
        "url": "mqtts://127.0.0.1:8883", "web_socket_url": "ws://127.0.0.1:1",
        "user": "me", "password": "a/b", "trust": "PEM", "trust_file": "t.pub",
        "federation": "fed", "device": "dev", "data": "d", "state": "s", "budget_mb": 100, "runtime": "onnxruntime",
    }  # fmt: skip
    return Connection(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.runtime
def test_python_agent_holds_a_part_of_the_kit(tmp_path: Path, kit_artifacts: Path) -> None:
    driver = CommandDriver(OWN_AGENT, tmp_path / "agent.log")
    options = KitOptions(tls=True, patience=2.0, artifacts=kit_artifacts)
    findings = run_conformance(driver, named_scenarios(PART), options=options)
    assert {f.scenario: f.seen for f in findings if f.outcome != "ok"} == {}
    assert {f.scenario for f in findings} == set(PART)


@pytest.mark.slow
@pytest.mark.broker
def test_agent_that_never_connects_fails_with_exit_status_1(command: Command) -> None:
    words = ("--agent", "sleep 60", "--patience", "0.02", "--only", "hello-says-who-and-what", "--json")
    outcome = command("conformance", *words)
    assert outcome.status == 1
    (line,) = outcome.out.splitlines()
    said = json.loads(line)
    assert (said["ok"], said["failed"], said["error"]["code"]) == (False, 1, "not-conformant")
    assert "no hello" in said["findings"][0]["seen"]


def test_list_names_every_scenario(command: Command) -> None:
    outcome = command("conformance", "--list")
    assert outcome.status == 0
    listed = [line for line in outcome.out.splitlines() if line and not line.startswith(" ")]
    assert listed == [scenario.name for scenario in all_scenarios()]


def test_unknown_scenario_and_mixed_options_are_exit_2(command: Command) -> None:
    assert command("conformance", "--only", "nonesuch").status == 2
    assert command("conformance", "--attach", "--agent", "x").status == 2
    assert command("conformance", "--restart", "x").status == 2
    assert command("conformance", "--broker", "rabbit").status == 2


def test_command_with_an_unknown_placeholder_or_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'colour' is unknown, known are broker, budget_mb, ca"):
        CommandDriver(f"{sys.executable} {{colour}}", tmp_path / "log")
    with pytest.raises(ConfigError, match="no program no-such-agent"):
        CommandDriver("no-such-agent {broker}", tmp_path / "log")


def test_command_is_given_its_connection(tmp_path: Path) -> None:
    code = "import os,sys; print(sys.argv[1], os.environ['CONFORMANCE_DEVICE'])"
    driver = CommandDriver(f'{sys.executable} -c "{code}" {{broker}}', tmp_path / "log")
    driver.start(connection(state=str(tmp_path / "state")))
    give_up_at = time.monotonic() + 10
    while not (tmp_path / "log").read_text().endswith("\n") and time.monotonic() < give_up_at:
        time.sleep(0.02)
    driver.stop()
    assert (tmp_path / "log").read_text() == "mqtts://me:a%2Fb@127.0.0.1:8883 dev\n"


def test_attached_agent_is_told_once_and_ended_by_its_hook_alone(tmp_path: Path) -> None:
    said = io.StringIO()
    by_hand = AttachedDriver(tell=said)
    by_hand.start(connection())
    assert json.loads(said.getvalue())["federation"] == "fed"
    for end in (by_hand.stop, by_hand.kill):
        with pytest.raises(NotApplicable, match="--restart"):
            end()
    seen = tmp_path / "seen"
    hook = tmp_path / "hook.sh"
    hook.write_text(f"echo $1 >> {seen}; cat > {tmp_path}/connection\n")
    hooked = AttachedDriver(hook=f"sh {hook}", tell=io.StringIO())
    hooked.start(connection())
    hooked.kill()
    hooked.start(connection(device="other"))
    hooked.stop()
    assert seen.read_text().split() == ["start", "kill", "start", "stop"]
    assert json.loads((tmp_path / "connection").read_text())["device"] == "other"


def test_page_lists_the_scenarios_of_the_code() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    table = page.split("## Scenarios\n")[1]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{s.name}` | {s.summary} | {s.clause} |" for s in all_scenarios()]


def test_clauses_are_sections_of_the_protocol() -> None:
    page = (ROOT / "docs" / "wire-protocol.md").read_text(encoding="utf-8")
    sections = {line.lstrip("# ") for line in page.splitlines() if line.startswith("#")}
    assert {s.clause.removesuffix(", repeated orders") for s in all_scenarios()} <= {
        clause for name in sections for clause in (name, *(f"{name}, {part}" for part in (1, 2, 3, 4, 5, "up", "bulk")))
    }


def test_times_of_the_page_are_the_agents() -> None:
    page = (ROOT / "docs" / "wire-protocol.md").read_text(encoding="utf-8")
    table = page.split("## Times\n")[1].split("\n## ")[0]
    first, last = blocks.FIRST_TIMEOUT_S, blocks.LAST_TIMEOUT_S
    said = (
        f"| `heartbeat` | every {_default('heartbeat_s'):g} s,",
        f"| asked for again after {first:g} s, then twice as long, up to {last:g} s; 4 times",
        f"| `offer` without `grant` | again after {uploader.REPEAT_S:g} s |",
        f"| `offer` again after {first:g} s, then as with blocks |",
        f"| again every {uploader.REPEAT_S:g} s, under its message id |",
        f"| {range_requests.TIMEOUT_S:g} s; after {range_requests.MAX_FAILURES} failures in a row blocks over MQTT |",
        f"| {presence.HEARTBEAT_LIMIT_S:g} s apart |",
        f"| {orders.ACCEPT_LIMIT_S:g} s |",
    )
    assert [row for row in said if row not in table] == []
    assert f"keep-alive {mqtt.KEEPALIVE_S} seconds" in page
    assert f"the last {settled_work.REMEMBERED:,} orders" in page


def test_refusal_codes_of_the_page_are_those_there_are() -> None:
    page = (ROOT / "docs" / "wire-protocol.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", page.split("## Refusals\n")[1].split("\n## ")[0], re.MULTILINE))
    raised = (
        errors.DeviceRefused, errors.PolicyRefused, errors.PolicyWaits, errors.DataError, errors.PlanError,
        errors.ArtifactCorrupt, errors.MessageRejected,
        errors.UnsupportedVersion, errors.SignatureRejected, errors.StoreFull, errors.DeadlineExpired,
    )  # fmt: skip
    said = {
        "unknown-blob",
        "trainer-crashed",
        "trainer-failed",
        settled_work.REPLAYED,
        masked_round.TOLD,
        out_of_memory.CODE,
    }
    assert listed == {error.code for error in raised} | said | {"unsupported-encoding", "masking-missing"}


def _default(name: str) -> float:
    return float(next(f.default for f in dataclasses.fields(AgentSettings) if f.name == name))  # type: ignore[arg-type]
