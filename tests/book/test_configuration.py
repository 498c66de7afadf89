"""The reference of the run file names every key that a file may have, each with a description and an example."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import msgspec
import pytest

from coordinator.config.cohort import PlannerConfig
from coordinator.config.run_config import RunConfig
from docs.book import configuration
from tests.examples.run_files import FILES

ROOT = Path(__file__).parents[2]


def test_every_table_and_key_of_the_structs_is_described() -> None:
    tables = {table.name: table for table in configuration.tables()}
    assert set(tables) >= {name.replace("_", "-") for name in RunConfig.__struct_fields__}
    assert {"cohort.local", "training.groups", "broker.tls"} <= set(tables)
    planner = {key.name for key in tables["planner"].keys}
    assert planner == {name.replace("_", "-") for name in PlannerConfig.__struct_fields__}


def test_keys_that_only_the_file_has_are_described() -> None:
    named = {table.name: {key.name for key in table.keys} for table in configuration.tables()}
    assert {"fraction", "size"} <= named["cohort"]
    assert {"name", "environment", "environments"} <= named["runtime"]
    assert "names" not in named["runtime"]


def test_keys_of_the_examples_are_in_the_reference() -> None:
    named = {table.name: {key.name for key in table.keys} for table in configuration.tables()}
    for path in FILES:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        for table, values in document.items():
            if isinstance(values, dict) and table not in ("method", "task"):
                unknown = {key.replace("_", "-") for key in values} - named[table]
                assert not unknown, f"{path.name}: [{table}] has {unknown}, which the reference lacks"


def test_type_default_and_bounds_are_those_of_the_code() -> None:
    keys = {(table.name, key.name): key for table in configuration.tables() for key in table.keys}
    assert keys["privacy", "recovery-share"].type == "number, above 0.5 to 1"
    assert keys["privacy", "recovery-share"].default == "0.67"
    assert keys["federation", "rounds"].default == "required"
    assert keys["aggregation", "mode"].type == "one of `synchronous`, `buffered`"
    assert "trimmed_mean" in keys["aggregation", "rule"].known


def _told(attributes: str) -> list[str]:
    class Probe(msgspec.Struct, frozen=True, kw_only=True):
        """``[probe]``."""

        every: int = 1

    Probe.__doc__ = inspect.cleandoc(f"``[probe]``: a table.\n\nAttributes:\n{attributes}")
    problems: list[str] = []
    configuration._table("probe", Probe, {"every": configuration._Asked()}, problems)
    return problems


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ("    every: rounds. Example: ``5``.", ""),
        ("    every: rounds.", "'every' has no example"),
        ("    every: Example: ``5``.", "'every' has no description"),
        ("    other: rounds. Example: ``5``.", "'every' has no description; name it under Attributes"),
        ('    every: rounds. Example: ``"often"``.', "does not fit: Expected `int`, got `str`"),
        ("    every: rounds. Example: ``5 rounds``.", "is no TOML"),
    ],
)
def test_a_key_without_description_or_example_is_named(attributes: str, problem: str) -> None:
    problems = _told(attributes)
    assert (problems == []) if not problem else any(problem in line for line in problems), problems


def test_a_key_that_the_reader_takes_and_nobody_describes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    read = configuration.keys_read()
    read["planner"]["new-key"] = configuration._Asked()
    monkeypatch.setattr(configuration, "keys_read", lambda: read)
    with pytest.raises(configuration.Undescribed, match="PlannerConfig: the reader of a run file asks for 'new-key'"):
        configuration.tables()
