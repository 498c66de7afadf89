"""Every registered method as a tiny run, and the table of ``docs/methods.md`` that says where each one trains.

A new method is here by being registered; one that needs options or another model has a line below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordinator.cli.exporting import dense_module
from coordinator.configuration import RunConfig
from coordinator.configuration_file import load_config_text
from coordinator.methods import METHODS
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes import RUNTIMES

ROUNDS = 2
DEVICES = 2
TABLE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"
TRAINED, REFUSED = "trained", "refused: "

CONVNET = """
[model]
build = "tests.federation.tiny_convnet:build"
input = [1, 8, 8]
classes = 10
options = { width = 8 }

[data]
source = "tests.federation.tiny_convnet:digit_images"
scale = 0.0625
"""

WITHOUT_NORM = CONVNET.replace("options = { width = 8 }", "options = { width = 8, norm = false }")

LINEAR = """
[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [48, 32] }

[data]
source = "digits"
scale = 0.0625
"""

TRANSFORMER = CONVNET.replace("tests.federation.tiny_convnet:build", "vit").replace(
    "width = 8", "width = 16, depth = 2, heads = 2"
)

OPTIONS = {
    # What a device with one level of several would not show: the narrow cut, nested widths, more atoms than one.
    "heterofl": "levels = [0.5]",
    "fedrolex": "levels = [0.5]",
    "federated_dropout": "levels = [0.5]",
    "fjord": "levels = [0.75, 0.5]",
    "split_mix": "levels = [2]",
    "small_model": "levels = [0.5]",
    "slt": "levels = [0.9]",
    "fedhm": "levels = [4]\nlayout = ['4']",
    "feddf": "levels = [1, 0.5]\nproxy = 'held-back'\nproxy-examples = 64\ndistillation-steps = 4",
    "ds_fl": "levels = [0.5]\nproxy = 'held-back'\nproxy-examples = 64\ndistillation-steps = 4",
    "fed_et": "levels = [0.5]\nproxy = 'held-back'\nproxy-examples = 64\ndistillation-steps = 4",
    "prunefl": "interval = 2",
    "slora": "levels = [4]\nstage-one-rounds = 1\ndensity = 0.1",  # a round of either stage
    "synflow": "input = [1, 8, 8]\npasses = 5",
}
"""Lines of ``[method]`` beside the name."""

MODELS = {"fedlora": LINEAR, "slora": LINEAR} | dict.fromkeys(("adapter", "prefix", "prompt"), TRANSFORMER)
"""Methods that do not cut convolutions."""


@dataclass(frozen=True)
class Case:
    """A method with options under which it asks something else of a device than without them.

    Attributes:
        title: as the table writes it, without backticks.
        options: further lines of ``[method]``.
    """

    title: str
    method: str
    options: str = ""


CASES = {name: Case(name, name) for name in sorted(METHODS)} | {
    "fedhm-distillation": Case("fedhm with distillation-weight", "fedhm", "distillation-weight = 0.5"),
}
"""Test id -> case: every registered method, and what its options add."""

PAIRS = [(case, runtime) for case in CASES for runtime in RUNTIMES]


def run_config(
    case: Case, folder: Path, *, runtime: str = "onnxruntime", model: str = "", lines: str = ""
) -> RunConfig:
    """Two rounds of two local devices; ``lines`` of ``[training]``, files it names in ``folder``."""
    options = "\n".join([_options(case.method, folder, model), case.options])
    return load_config_text(config_text(case.method, options, runtime=runtime, model=model, lines=lines))


def config_text(method: str, options: str, *, runtime: str = "onnxruntime", model: str = "", lines: str = "") -> str:
    """The run file of :func:`run_config`."""
    return f"""
[federation]
name = "rounds"
seed = 5
rounds = {ROUNDS}

{model or MODELS.get(method, CONVNET)}
[method]
name = "{method}"
{options}

[training]
batch = 16
lr = 0.05
momentum = 0.9
weight-decay = 0.0001
{lines or "steps = 4"}

[evaluation]
every = 0

[cohort]
deadline-s = 120
join-timeout-s = 300
[[cohort.local]]
count = {DEVICES}

[runtime]
name = "{runtime}"

[broker]
url = "embedded"
"""


def _options(name: str, folder: Path, model: str) -> str:
    if name != "lottery_ticket":
        return OPTIONS.get(name, "")
    module = dense_module(load_config_text(config_text("fedavg", "", model=model)))
    generator = np.random.default_rng(0)
    kept = {n: v.numpy() * (generator.random(tuple(v.shape)) < 0.5) for n, v in module.state_dict().items()}
    path = folder / "ticket.safetensors"
    path.write_bytes(encode_tensors({n: v.astype(np.float32) for n, v in kept.items()}))
    return f'mask-file = "{path}"'


def table() -> dict[str, dict[str, str]]:
    """Title of a case -> runtime -> ``trained`` or ``refused: <reason>``, as ``docs/methods.md`` has it."""
    lines = TABLE.read_text().partition("## On which runtime")[2].partition("\n## ")[0].splitlines()
    rows = [[re.sub("`", "", cell).strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    head, _, *body = rows
    return {title: dict(zip(head[1:], cells, strict=True)) for title, *cells in body}


def expected(case: Case, runtime: str) -> str:
    """What the table says of a pair.

    Raises:
        AssertionError: nothing; the table wants a row.
    """
    rows = table()
    assert case.title in rows, f"docs/methods.md, 'On which runtime', has no row for '{case.title}': add it"
    return rows[case.title][runtime]
