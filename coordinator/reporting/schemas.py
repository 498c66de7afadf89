"""JSON Schemas of what people write for a run and what a run writes for programs, made from the structs themselves.

A run file is TOML: its schema is of the document that a TOML parser makes of it. It finds misspelt keys and wrong
types, as an editor shows them; what values go together is checked by the run alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any

import msgspec

from coordinator.config.run_config import MethodConfig, RunConfig
from coordinator.config.task import TaskConfig
from coordinator.reporting.files import ResultLine, RoundLine, Summary

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WITH_OPTIONS = (MethodConfig.__name__, TaskConfig.__name__)
"""Tables whose other keys are options, in the spelling of the method or the task."""


def run_file() -> dict[str, Any]:
    """Of a run file, as a TOML parser reads it."""
    schema = _schema(RunConfig, "a run file of apportion (TOML)")
    for name, table in schema["$defs"].items():
        keys = {key.replace("_", "-"): value for key, value in table.get("properties", {}).items()}
        required = [key.replace("_", "-") for key in table.get("required", ())]
        if name in _WITH_OPTIONS:
            keys.pop("options")
        table |= {"properties": keys, "required": required, "additionalProperties": name in _WITH_OPTIONS}
        # A file that extends another has only what differs.
        if name not in ("RunConfig", "LocalGroup", "ParameterGroupConfig", "TlsFiles"):
            del table["required"]
    root = schema["$defs"]["RunConfig"]
    root["properties"]["extends"] = {"type": "string", "description": "a run file that this one builds on"}
    root["required"] = []
    defs = schema["$defs"]
    # Where the file may say it shorter than the struct that it becomes.
    _or(defs["ModelConfig"], "classes", {"type": "integer"})
    _or(defs["LocalGroup"], "level", {"type": "number"})
    share = "size as a share of the local devices, in (0, 1]"
    defs["CohortConfig"]["properties"]["fraction"] = {"type": "number", "description": share}
    runtime = defs["RuntimeConfig"]["properties"]
    folder = "folder of the virtual environment of the one runtime"
    runtime["environment"] = {"type": "string", "description": folder}
    runtime["name"] = {"anyOf": [{"type": "string"}, runtime.pop("names")]}
    return schema


def metrics_line() -> dict[str, Any]:
    """Of a line of ``metrics.jsonl`` whose event is ``round``."""
    return _schema(RoundLine, "a line of metrics.jsonl with a committed round")


def summary_file() -> dict[str, Any]:
    """Of ``summary.json``."""
    return _schema(Summary, "summary.json of a run or a simulation")


def result_line() -> dict[str, Any]:
    """Of what every verb prints with ``--json``."""
    return _schema(ResultLine, "the line that a verb prints with --json")


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "run": run_file,
    "metrics": metrics_line,
    "summary": summary_file,
    "result": result_line,
}
"""Name -> what makes it."""


def schema_text(name: str) -> str:
    """The schema ``name`` of :data:`SCHEMAS` as a JSON file."""
    return json.dumps(SCHEMAS[name](), indent=2) + "\n"


def _schema(kind: type, title: str) -> dict[str, Any]:
    schema = msgspec.json.schema(kind)
    for table in schema["$defs"].values():
        text = cleandoc(str(table.pop("description", "")))  # msgspec 0.22 leaves the indentation, 0.23 takes it away
        told = _attributes(text)
        table["description"] = _plain(text.partition("Attributes:")[0])
        for key, value in table.get("properties", {}).items():
            if key in told and "$ref" not in value:
                value["description"] = told[key]
    return {"$schema": DIALECT, "title": title, **schema}


def _attributes(docstring: str) -> dict[str, str]:
    """Key -> what the docstring of its struct says of it."""
    found: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}([a-z_, ]+): (.*(?:\n {8}.*)*)", docstring, re.MULTILINE):
        found |= {name.strip(): _plain(text) for name in names.split(",")}
    return found


def _plain(text: str) -> str:
    return re.sub(r":\w+:`\.?([^`]*)`", r"\1", " ".join(text.split())).replace("``", "`")


def _or(table: dict[str, Any], key: str, other: dict[str, Any]) -> None:
    value = table["properties"][key]
    told = value.pop("description", "")
    default = {"default": value.pop("default")} if "default" in value else {}
    table["properties"][key] = {"anyOf": [value, other], **default, "description": told}
