"""Published JSON Schemas: current, and true of run files and of what a run writes."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from coordinator.reporting.schemas import SCHEMAS, schema_text
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from tests.cli.conftest import Command, command

__all__ = ["command"]

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "schemas"


@functools.cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((PUBLISHED / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problems(name: str, document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(document)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_published_schema_is_current(name: str) -> None:
    assert (PUBLISHED / f"{name}.json").read_text() == schema_text(name), "write it again: apportion schema --out DIR"


def test_every_example_and_every_table_of_the_docs_is_valid() -> None:
    known = validator("run").schema["$defs"]["RunConfig"]["properties"]
    tables = {str(path): tomllib.loads(path.read_text()) for path in (ROOT / "examples").glob("*.toml")}
    for page in (ROOT / "docs").rglob("*.md"):
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)):
            try:
                found = tomllib.loads(block)
            except tomllib.TOMLDecodeError:
                continue  # with dots where a reader fills in
            if set(found) <= set(known):
                tables[f"{page}:{number}"] = found
    assert len(tables) > 20
    assert [f"{where}{problem}" for where, table in tables.items() for problem in problems("run", table)] == []


def test_keys_are_those_that_the_reader_of_run_files_knows() -> None:
    schema = validator("run").schema
    tables = [name for name in schema["$defs"]["RunConfig"]["properties"] if name != "extends"]
    groups = "[[cohort.local]]\ncount = 1\nno-key = 1\n[[training.groups]]\nno-key = 1\n"
    with pytest.raises(ConfigError) as raised:
        load_config_text("".join(f"[{name}]\nno-key = 1\n" for name in tables) + groups)
    told = re.findall(r"^\$\.(.*?)\.no-key: unknown key.*?known: (.*)$", "\n".join(raised.value.problems), re.MULTILINE)
    groups_of = {"cohort.local[0]": "LocalGroup", "training.groups[0]": "ParameterGroupConfig"}
    known = {place: set(keys.split(", ")) for place, keys in told}
    assert set(tables) - set(known) == {"method", "task"}  # whose other keys are options
    for place, keys in known.items():
        root = schema["$defs"]["RunConfig"]["properties"]
        table = groups_of.get(place) or re.search(r"#/\$defs/(\w+)", json.dumps(root[place]))[1]  # type: ignore[index]
        assert set(schema["$defs"][table]["properties"]) == keys, place


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"federation": {"name": "a", "round": 3}}, "$.federation"),
        ({"training": {"lr": "fast"}}, "$.training.lr"),
        ({"cohort": {"local": [{"budget-mb": 3}]}}, "$.cohort.local[0]"),
        ({"trainning": {}}, "$"),
    ],
)
def test_a_misspelt_key_and_a_wrong_type_are_found(document: dict[str, Any], where: str) -> None:
    assert [found for found in problems("run", document) if found.startswith(f"{where}:")]


def test_keys_have_what_the_docstrings_say_of_them() -> None:
    keys = validator("run").schema["$defs"]["FederationConfig"]["properties"]
    assert keys["patience"]["description"].startswith("evaluations in a row without a better one")


def test_what_a_verb_prints_is_as_published(command: Command) -> None:
    assert problems("result", command("costs", "--json").line) == []
    outcome = command("schema", "run")
    assert json.loads(outcome.out) == json.loads((PUBLISHED / "run.json").read_text())
    outcome = command("schema", "frame")
    assert outcome.status == 2
    assert "known: run, metrics, summary, result" in outcome.err
