"""The page's structs have the fields of ours; what a page is never asked for is named, so no new field is forgotten."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from pathlib import Path

import msgspec
import pytest

import edge.contracts
import profiles.device

WEB = Path(__file__).parents[2] / "edge" / "web"
NOT_OURS: dict[str, list[str]] = json.loads((WEB / "test" / "contracts" / "notOurs.json").read_text(encoding="utf-8"))
_STRUCT = re.compile(r'struct<\w+>\("(\w+)", \{(.*?)\}\);', re.DOTALL)


def page_fields() -> dict[str, list[str]]:
    sources = sorted((WEB / "src" / "contracts").glob("*.ts"))
    found = [match for path in sources for match in _STRUCT.findall(path.read_text(encoding="utf-8"))]
    return {name: re.findall(r"(?:^|,)\s*(\w+):", re.sub(r"\{.*?\}", "", body)) for name, body in found}


def contracts() -> dict[str, type[msgspec.Struct]]:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(edge.contracts.__path__, "edge.contracts.")
    ]
    values = [value for module in (*modules, profiles.device) for value in vars(module).values()]
    return {value.__name__: value for value in values if isinstance(value, type) and issubclass(value, msgspec.Struct)}


@pytest.mark.parametrize(("name", "fields"), sorted(page_fields().items()))
def test_page_has_every_field_that_it_may_be_asked_for(name: str, fields: list[str]) -> None:
    known = [field for field in contracts()[name].__struct_fields__ if field not in NOT_OURS.get(name, ())]
    assert fields == known, f"edge/web/src/contracts: {name}; what a page is never asked for goes into notOurs.json"


def test_fields_that_the_page_leaves_out_exist() -> None:
    assert {
        name for name, fields in NOT_OURS.items() if set(fields) - set(contracts()[name].__struct_fields__)
    } == set()
    assert set(NOT_OURS) <= set(page_fields())
