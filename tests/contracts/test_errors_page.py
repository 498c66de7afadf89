"""docs/errors.md and the errors of this project name the same codes, classes and exit statuses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
PACKAGES = ("profiles", "edge", "export", "coordinator", "apportion")
WITHOUT_CLASS = {"bad-arguments": 2, "bug": 5, "interrupted": 130, "not-deployed": 1, "not-ready": 1, "system": 1}
"""Codes that the command line gives by itself, and their exit status."""

SECTION = re.compile(
    r"`(?P<code>[a-z-]+)`\n\n(`(?P<name>\w+)`|From the command line itself), exit status (?P<status>\d+)\.\n\n"
    r"\*\*Cause\.\*\* .+\n\n\*\*Next step\.\*\* .+\n*"
)


def error_classes() -> dict[str, tuple[str, int]]:
    """Code -> class and exit status, of every class with a code in the packages; read, not imported."""
    found: dict[str, tuple[str, str, int | None]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if '    code = "' not in (text := path.read_text(encoding="utf-8")):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and "code" in (values := constants(node)):
                    base = next((b.id for b in node.bases if isinstance(b, ast.Name)), "")
                    assert values["code"] not in found, f"{path}: the code {values['code']} is taken"
                    found[values["code"]] = (node.name, base, values.get("exit_code"))
    own = {name: (base, status) for name, base, status in found.values()}

    def status_of(name: str) -> int:
        base, status = own[name]
        return status if status is not None else status_of(base)

    return {code: (name, status_of(name)) for code, (name, _, _) in found.items()}


def constants(node: ast.ClassDef) -> dict[str, object]:
    found: dict[str, object] = {}
    for line in node.body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                found[name] = value
    return found


def test_every_code_has_a_section_with_its_cause_and_next_step_and_no_section_is_of_another() -> None:
    _, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    matches = [SECTION.fullmatch(section) for section in sections]
    assert [section[:40] for section, match in zip(sections, matches, strict=True) if match is None] == []
    told = {m["code"]: (m["name"] or "", int(m["status"])) for m in matches if m is not None}
    expected = error_classes() | {code: ("", status) for code, status in WITHOUT_CLASS.items()}
    assert told == expected
    assert list(told) == sorted(told)


def test_codes_without_a_class_are_those_that_the_command_line_gives() -> None:
    texts = "".join(
        (ROOT / "coordinator" / "cli" / name).read_text() for name in ("command.py", "doctor.py", "fleet_deployment.py")
    )
    assert [code for code in WITHOUT_CLASS if f'"{code}"' not in texts] == []
