"""``apportion join``: what it refuses before it waits for anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.assembly import join_run
from coordinator.cli.open_run import RunOptions
from edge.contracts.errors import ConfigError
from tests.cli.conftest import Command
from tests.federation.small_run import config_text
from tests.postgres_server import PostgresServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.toml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["postgresql://x/y"], "--federation: the address of a ledger goes with the name of the run"),
        (["postgresql://me:pw@x/y", "--federation", "f"], "WHERE: leave the password out of the address"),
        (["postgresql://me@x/y?password=pw", "--federation", "f"], "WHERE: leave the password out of the address"),
        (["nothing.toml"], "nothing.toml: no such file"),
        ([str(EXAMPLE)], "$.store.ledger is no server; only one coordinator can run it"),
    ],
)
def test_join_refuses(command: Command, arguments: list[str], message: str) -> None:
    outcome = command("join", *arguments, "--json")
    assert outcome.status == 2
    assert message in outcome.error["message"]
    assert "pw@" not in outcome.out + outcome.err


def test_join_of_another_run_than_the_file_is_of(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(config_text() + '\n[store]\nledger = "postgresql://x/y"\n')
    outcome = command("join", tmp_path, "--federation", "other", "--json")
    assert outcome.status == 2
    assert "is of 'small', not of 'other'" in outcome.error["message"]


def test_join_of_a_run_that_nobody_began(command: Command, postgres_server: PostgresServer) -> None:
    outcome = command("join", postgres_server.new_database(), "--federation", "small", "--json")
    assert outcome.status == 1
    assert "no ledger of that name here; name another, or start the run" in outcome.error["message"]


def test_join_of_a_run_that_is_bound_to_one_machine_says_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        join_run(config_text(), "postgresql://x/y", tmp_path / "second", RunOptions(quiet=True))
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["$.broker.url", "$.store"]
