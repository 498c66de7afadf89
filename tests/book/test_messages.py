"""The AsyncAPI document holds every message kind, and is one by AsyncAPI's own schema."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from docs.book import messages
from edge.contracts.envelope import seal, unseal
from edge.contracts.messages import BODIES
from tests.contracts.samples import BODIES as SAMPLES

SPECIFICATION = "@asyncapi/specs@6.11.1"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return messages.document()


def test_every_kind_has_a_channel_an_operation_and_a_schema(document: dict[str, Any]) -> None:
    addresses = {channel["address"] for channel in document["channels"].values()}
    for kind in messages.kinds():
        if "device" in kind.senders:
            assert f"apportion/v1/{{federation}}/up/{{device}}/{kind.name}" in addresses
        if "coordinator" in kind.senders:
            assert f"apportion/v1/{{federation}}/dn/{{device}}/{kind.name}" in addresses
        assert kind.body.__name__ in document["components"]["schemas"]
    actions = {operation["action"] for operation in document["operations"].values()}
    assert (set(document["components"]["messages"]), actions) == (set(BODIES), {"send", "receive"})


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for inner in value.values() for found in references(inner)]
        return [found for inner in value for found in references(inner)] if isinstance(value, list) else []

    found = references(document)
    assert len(found) > 100
    for reference in found:
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            assert part in place, reference
            place = place[part]


@pytest.mark.parametrize("kind", sorted(set(BODIES) & set(SAMPLES)))
def test_real_messages_are_valid(kind: str, document: dict[str, Any]) -> None:
    body = msgspec.to_builtins(unseal(seal(kind, SAMPLES[kind])).read(BODIES[kind]))
    schema = {"$ref": f"#/components/schemas/{BODIES[kind].__name__}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(json.loads(msgspec.json.encode(body)))


@pytest.mark.slow
def test_document_is_valid_by_the_published_schema(document: dict[str, Any], tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed here; it fetches AsyncAPI's schema")
    fetched = subprocess.run(
        ["npm", "pack", "--silent", SPECIFICATION], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"npm cannot fetch {SPECIFICATION}: {fetched.stderr[-200:]}")
    shutil.unpack_archive(tmp_path / fetched.stdout.strip(), tmp_path)
    schema = json.loads((tmp_path / "package/schemas/3.0.0-without-$id.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    del document["channels"]["up-hello"]["messages"]["hello"]["$ref"]
    document["operations"]["receive-up-hello"]["action"] = "listen"
    assert not validator.is_valid(document)
