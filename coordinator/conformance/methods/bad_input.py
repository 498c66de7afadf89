"""What a method refuses, with what message: options that it does not have, updates that do not fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.conformance.findings import Failed, expect
from coordinator.conformance.methods.subject import Subject, untrained
from edge.contracts.errors import ApportionError, ConfigError

OPTIONS: tuple[dict[str, Any], ...] = (
    {"no-such-option": 1},
    {"loss": "no_such_loss"},
    {"loss": None},
    {"norm": ["running"]},
    {"levels": [math.nan]},
    {"levels": {"a": 1}},
    {"loss": 3, "norm": 4, "no-such-option": 5},
)
"""Options that no method takes: as one it does not have, or as a value that it cannot have."""


def unknown_options_are_refused(subject: Subject) -> str:
    """Each bad option of a table is told in one ConfigError, with its path; none is left to be found out later."""
    for options in OPTIONS:
        try:
            subject.made(options)
        except ConfigError as error:
            expect(
                len(error.problems) == len(options) and all(f"$.method.{key}" in str(error) for key in options),
                f"{options}: one problem for each, with its path, expected: {error}",
            )
        else:
            raise Failed(f"{options} were taken; read options with coordinator.config.method_options.Options")
    return f"{len(OPTIONS)} tables"


def bad_updates_are_refused(subject: Subject) -> str:
    """An update with a NaN, another shape, an unknown tensor or no example is refused, and its device named."""
    method, state = subject.built()
    good = untrained(method, state, 0, "pi-07")
    name = [n for n, v in good.tensors.items() if v.dtype.kind == "f" and not ("#" in n or "running_" in n)][-1]
    value = good.tensors[name]
    bad = {
        "a NaN": replace(good, tensors={**good.tensors, name: np.full_like(value, np.nan)}),
        "another shape": replace(good, tensors={**good.tensors, name: np.zeros((*value.shape, 2), value.dtype)}),
        "an unknown tensor": replace(good, tensors={**good.tensors, "no.such.tensor": np.zeros(5, np.float32)}),
        "no example": replace(good, num_examples=0),
    }
    for what, update in bad.items():
        try:
            method.aggregate(state, [update])
        except ApportionError as error:
            expect("pi-07" in str(error), f"an update with {what} is refused without its device's name: {error}")
        else:
            raise Failed(f"an update with {what} ('{name}') was taken")
    return ", ".join(bad)


def no_updates_are_refused(subject: Subject) -> str:
    """A round without an update is refused, with a message that says so."""
    method, state = subject.built()
    try:
        method.aggregate(state, [])
    except ApportionError as error:
        expect("no updates" in str(error), f"'no updates' expected in: {error}")
        return str(error)
    raise Failed("a round of no updates gave a state")
