"""Every verb of ``apportion``, in the groups of its help: the module that registers it and one plain line."""

from __future__ import annotations

from typing import NamedTuple

from edge.commands.verbs import VERBS as DEVICE_VERBS


class Verb(NamedTuple):
    """One verb.

    Attributes:
        module: has ``register(app)``; empty for a device's, which never come to :mod:`coordinator.cli.command`.
        line: what it does, in the words of somebody who looks for it.
    """

    module: str
    line: str


def _of_a_device(name: str) -> Verb:
    return Verb("", DEVICE_VERBS[name].line)


GROUPS: dict[str, dict[str, Verb]] = {
    "Start here": {
        "demo": Verb("coordinator.cli.demo", "train with eight device processes on this machine, in a minute"),
        "init": Verb("coordinator.cli.init", "write a small project of your own that runs as it is"),
        "doctor": Verb("coordinator.cli.doctor", "look for what would stop a run, a model or this machine"),
        "data": Verb("coordinator.cli.data", "get or make data to try things on"),
        "tokenizer": Verb("coordinator.cli.tokenizer", "make a tokenizer for a language model"),
    },
    "Run a federation": {
        "plan": Verb("coordinator.cli.plan", "show which device would train what, and its memory"),
        "advise": Verb("coordinator.cli.advise", "say which method and level should reach an accuracy first"),
        "forecast": Verb("coordinator.cli.forecast", "reckon rounds, bytes, machines and money of a large fleet"),
        "simulate": Verb("coordinator.cli.simulate", "run a run file here, with torch in place of the devices"),
        "run": Verb("coordinator.cli.run", "start a run and wait for its last round"),
        "resume": Verb("coordinator.cli.resume", "go on with a run that was stopped or killed"),
        "join": Verb("coordinator.cli.join", "help a run as a further coordinator"),
        "pause": Verb("coordinator.cli.control", "begin no further round until you continue"),
        "continue": Verb("coordinator.cli.control", "let a paused run go on"),
        "drain": Verb("coordinator.cli.control", "stop a run after the round that is open"),
        "stop": Verb("coordinator.cli.control", "stop a run now; it can be resumed"),
    },
    "Watch and look back": {
        "watch": Verb("coordinator.cli.watch", "follow a run in the browser, while it goes on or after it"),
        "top": Verb("coordinator.cli.top", "follow a run on this terminal, and pause or stop it"),
        "report": Verb("coordinator.cli.report", "write what a run came to as one page, also before its end"),
        "compare": Verb("coordinator.cli.compare", "lay runs side by side: settings, scores, what each cost"),
    },
    "Devices": {
        "device": Verb("coordinator.cli.device", "set up, list, look into, upgrade and remove devices"),
        "agent": _of_a_device("agent"),
        "enrol": _of_a_device("enrol"),
        "csr": _of_a_device("csr"),
        "profile": Verb("coordinator.cli.profile", "measure a device's memory and speed"),
        "relay": _of_a_device("relay"),
    },
    "Models and artifacts": {
        "costs": Verb("coordinator.cli.costs", "count a model's parameters, operations and memory"),
        "contributions": Verb("coordinator.cli.contributions", "measure which layers are worth training in part"),
        "export": Verb("coordinator.cli.export", "write a model's training step for a device, checked"),
        "verify": Verb("coordinator.cli.verify", "repeat the check of an exported training step"),
        "bench": Verb("coordinator.cli.bench", "time a training step here, beside torch"),
        "deploy": Verb("coordinator.cli.deploy", "write the final model for predictions, or send it to devices"),
        "predict": _of_a_device("predict"),
        "generate": _of_a_device("generate"),
        "release": _of_a_device("release"),
    },
    "Security": {
        "ca": Verb("coordinator.cli.ca", "certificates, enrolment tokens and revocation"),
        "quarantine": Verb("coordinator.cli.quarantine", "updates that were set aside: look, add, release"),
        "audit": Verb("coordinator.cli.audit", "who did what and when; check that no entry is missing"),
    },
    "Tools": {
        "schema": Verb("coordinator.cli.schema", "print the JSON Schema of run files and of what runs write"),
        "fsck": Verb("coordinator.cli.fsck", "check a run's ledger and files against each other"),
        "conformance": Verb("coordinator.cli.conformance", "test an agent or a method of your own"),
        "loadtest": Verb("coordinator.cli.loadtest", "try a broker and coordinator with many light devices"),
    },
}
"""Heading -> verb -> where it is. A new verb is one new file and one line here; verbs may share a file."""

VERBS: dict[str, Verb] = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}
