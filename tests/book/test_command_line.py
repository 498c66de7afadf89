"""The reference of the command line names every command, with its options and its example."""

from __future__ import annotations

from coordinator.cli.verbs import VERBS
from docs.book import command_line


def test_every_command_has_help_options_and_an_example() -> None:
    verbs = {verb.name: verb for verb in command_line.verbs()}
    groups = {name.partition(" ")[0] for name in verbs if " " in name}
    assert set(VERBS) <= set(verbs) | groups
    for verb in verbs.values():
        assert verb.help, verb.name
        assert verb.example.startswith("apportion "), verb
        for option in verb.options:
            assert option.help, f"apportion {verb.name}: {option.written} says nothing"


def test_options_of_both_kinds_of_parser_are_read() -> None:
    verbs = {verb.name: verb for verb in command_line.verbs()}
    assert any(option.written.startswith("--local-devices") for option in verbs["run"].options)
    agent = {option.written: option.help for option in verbs["agent"].options}
    assert agent["--broker URL"].endswith("[required]")
    assert "--threads N" in agent
