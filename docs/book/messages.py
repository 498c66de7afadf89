"""The wire protocol as an AsyncAPI 3 document, from the structs of ``edge.contracts`` and the table of their kinds."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edge.contracts import messages, topics
from edge.contracts.envelope import MAX_MESSAGE_BYTES, VERSION
from edge.contracts.release import RELEASE

FILE = "asyncapi.json"
_ROW = re.compile(r"^(\w+)  +(both|dev|co)  +(.+)$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^ {4}(\w+(?:, \w+)*): ", re.MULTILINE)
_SENDERS = {"both": ("device", "coordinator"), "dev": ("device",), "co": ("coordinator",)}


@dataclass(frozen=True)
class Kind:
    """One message kind: who sends it, what it means, and its body."""

    name: str
    senders: tuple[str, ...]
    meaning: str
    body: type


def kinds() -> list[Kind]:
    """Every kind, in the order of the table in :mod:`edge.contracts.messages`.

    Raises:
        ValueError: the table and ``BODIES`` name other kinds.
    """
    rows = _ROW.findall(inspect.getdoc(messages) or "")
    named, bodies = {row[0] for row in rows}, set(messages.BODIES)
    if named != bodies:
        raise ValueError(f"edge/contracts/messages.py: its table and BODIES differ in {sorted(named ^ bodies)}")
    return [
        Kind(name, _SENDERS[who], _plain(text).replace("from co:", "from the coordinator:"), messages.BODIES[name])
        for name, who, text in rows
    ]


def document() -> dict[str, Any]:
    """The AsyncAPI document, seen from the coordinator: it receives what devices send."""
    bodies = {kind.name: kind for kind in kinds()}
    schemas = _schemas({kind.body.__name__: kind.body for kind in bodies.values()})
    channels, operations = {}, {}
    for kind in bodies.values():
        for name, address, action in _channels(kind):
            channels[name] = {
                "address": address,
                "summary": kind.meaning,
                "parameters": {part: {"$ref": f"#/components/parameters/{part}"} for part in _parts(address)},
                "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"}},
                "servers": [{"$ref": "#/servers/broker"}],
            }
            operations[f"{action}-{name}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/{kind.name}"}],
            }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Apportion wire protocol",
            "version": f"{VERSION}",
            "description": _INFO,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/msgpack",
        "servers": {
            "broker": {
                "host": "broker.local:8883",
                "protocol": "mqtts",
                "protocolVersion": "3.1.1",
                "description": "the broker of the federation; mqtt:// and WebSocket serve as well",
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "parameters": {
                "federation": {"description": "name of the federation"},
                "device": {"description": "id of the device, also its certificate's common name"},
            },
            "messages": {kind.name: _message(kind) for kind in bodies.values()},
            "schemas": schemas,
        },
    }


_INFO = (
    f"Messages of release {RELEASE}. A payload is one msgpack map, the envelope, {MAX_MESSAGE_BYTES:,} bytes at most; "
    "its body is the map that belongs to its kind. Unknown fields are ignored, a missing field with a default has it."
)


def _channels(kind: Kind) -> Iterator[tuple[str, str, str]]:
    """(name, address, what the coordinator does there) of each topic of ``kind``."""
    if "device" in kind.senders:
        yield f"up-{kind.name}", topics.up("{federation}", "{device}", kind.name), "receive"
    if "coordinator" in kind.senders:
        yield f"dn-{kind.name}", topics.down("{federation}", "{device}", kind.name), "send"
    if kind.name in TO_ALL:
        yield f"all-{kind.name}", topics.everyone("{federation}", kind.name), "send"


TO_ALL = ("hello",)
"""Kinds that the coordinator also says to all devices at once."""


def _parts(address: str) -> list[str]:
    return re.findall(r"{(\w+)}", address)


def _message(kind: Kind) -> dict[str, Any]:
    body: dict[str, Any] = {"$ref": f"#/components/schemas/{kind.body.__name__}"}
    if "coordinator" in kind.senders and kind.name == "hello":
        body = {"anyOf": [body, {"type": "object", "maxProperties": 0}]}
    return {
        "name": kind.name,
        "title": kind.body.__name__,
        "summary": kind.meaning,
        "contentType": "application/msgpack",
        "payload": {
            "type": "object",
            "required": ["v", "id", "kind", "sent_at", "body"],
            "properties": {
                "v": {"const": VERSION},
                "id": {"type": "string", "description": "random; a repeated message keeps its own"},
                "kind": {"const": kind.name},
                "sent_at": {
                    "type": "number",
                    "description": "the sender's clock, seconds since 1970, for display only",
                },
                "signature": {"type": "string", "description": "bytes, over the body; where there is none, not there"},
                "body": body,
            },
        },
    }


def _schemas(bodies: dict[str, type]) -> dict[str, Any]:
    _, found = msgspec.json.schema_components(bodies.values(), ref_template="#/components/schemas/{name}")
    for name, schema in found.items():
        if "description" in schema:
            schema["description"] = _plain(schema["description"].partition("\n\n")[0])
        for field, text in _described(bodies[name]).items() if name in bodies else ():
            if "$ref" not in (told := schema["properties"].get(field, {})):
                told["description"] = text
    return found


def _described(struct: type) -> dict[str, str]:
    _, _, attributes = (inspect.getdoc(struct) or "").partition("\nAttributes:\n")
    parts = _ATTRIBUTE.split(attributes.rstrip())[1:]
    told = zip(parts[::2], parts[1::2], strict=True)
    return {name: _plain(text) for names, text in told for name in names.split(", ")}


def _plain(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", lambda match: match[1].rpartition(".")[2], text)
    return " ".join(text.replace("``", "").split())


def write(folder: Path) -> Path:
    """Writes the document into ``folder`` and gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(json.dumps(document(), indent=1) + "\n", encoding="utf-8")
    return path


def markdown() -> str:
    """The reference as a page's text: a section for each kind, then one for each struct inside a body."""
    found = document()
    lines: list[str] = []
    shown = set()
    for kind in kinds():
        lines += [f"(message-{kind.name})=", "", f"## `{kind.name}`", ""]
        lines += [f"From the {' and the '.join(kind.senders)}: {kind.meaning}", "", "Topics:", ""]
        lines += [f"- `{address}`" for _, address, _ in _channels(kind)]
        lines += ["", *_fields(found["components"]["schemas"][kind.body.__name__])]
        shown.add(kind.body.__name__)
    lines += ["## Values inside bodies", ""]
    for name, schema in found["components"]["schemas"].items():
        if name not in shown:
            lines += [f"(message-value-{name.lower()})=", "", f"### `{name}`", "", schema.get("description", ""), ""]
            lines += _fields(schema)
    return "\n".join(lines)


def _fields(schema: dict[str, Any]) -> list[str]:
    if not schema.get("properties"):
        return []
    lines = ["| field | type | | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        is_required, has_default = name in schema.get("required", []), "default" in field
        default = f"default `{json.dumps(field['default'])}`" if has_default else "may be left out"
        told = field.get("description", "").replace("|", "\\|")
        lines.append(f"| `{name}` | {_type(field)} | {'required' if is_required else default} | {told} |")
    return [*lines, ""]


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        of_kind = next((kind.name for kind in kinds() if kind.body.__name__ == name), "")
        return f"[`{name}`](#message-{of_kind})" if of_kind else f"[`{name}`](#message-value-{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(part) for part in field["anyOf"])
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("contentEncoding") == "base64":
        return "bytes"
    if field.get("type") == "array":
        inner = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_type(inner)}" if inner else "list"
    if field.get("type") == "object":
        values = field.get("additionalProperties")
        return f"map to {_type(values)}" if isinstance(values, dict) and values else "map"
    return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}.get(
        str(field.get("type")), str(field.get("type", "any"))
    )
