"""Every registered method as a tiny run, and the table of ``docs/methods.md`` that says where each one trains.

A new method is here by being registered; one that has nothing to go on without options has a line below.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.methods import METHODS, build_method
from coordinator.run_file.loading import load_config_text
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes import RUNTIMES
from export.formats import FEATURES

ROUNDS = 2
DEVICES = 2
"""On another runtime than ``onnxruntime`` one device: a second would train the same program once more."""
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
    "sparse_update": "levels = [0.9]\ncontributions = { 0 = 0.1, 4 = 1.0 }",
    "synflow": "input = [1, 8, 8]\npasses = 5",
}
"""Lines of ``[method]`` beside the name."""

MODELS = {"fedlora": LINEAR, "slora": LINEAR} | dict.fromkeys(("adapter", "prefix", "prompt"), TRANSFORMER)
"""Methods that do not cut convolutions."""


@dataclass(frozen=True)
class Case:
    """A method with options under which it asks something else of a device than without them.

    Attributes:
        options: further lines of ``[method]``.
    """

    method: str
    options: str = ""


CASES = {name: Case(name) for name in sorted(METHODS)} | {
    "fedhm-distillation": Case("fedhm", "distillation-weight = 0.5"),
}
"""Test id -> case: every registered method, and what its options add."""

KINDS = (
    *("adapter", "fedavg", "fedhm", "fedhm-distillation", "fjord", "heterofl", "online_sparsity", "prefix", "prism"),
    *("prompt", "prunefl", "slora", "slt", "sparse_update", "split_mix"),
)
"""One method of each kind of device program: the others' devices run one of these programs in another size, and what
those methods do differently they do on the coordinator."""

LINES = "steps = 3\nnesterov = true\nclip-norm = 1.0"
"""``[training]`` of the runs of kinds: whole rounds train the very artifacts that single steps are compared with."""

PAIRS = [(case, runtime) for case in KINDS for runtime in RUNTIMES]
"""Every kind of device program on every runtime."""


def run_config(
    case: Case, folder: Path, *, runtime: str = "onnxruntime", model: str = "", lines: str = ""
) -> RunConfig:
    """Two rounds of the local devices; ``lines`` of ``[training]``, files it names in ``folder``."""
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
count = {DEVICES if runtime == "onnxruntime" else 1}

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
    """What a device needs -> runtime -> ``trained`` or ``refused``, as ``docs/methods.md`` has it."""
    lines = TABLE.read_text().partition("## On which runtime")[2].partition("\n## ")[0].splitlines()
    rows = [[re.sub("`", "", cell).strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    head, _, *body = rows
    return {need: dict(zip(head[1:], cells, strict=True)) for need, *cells in body}


@cache
def needs(case: Case) -> frozenset[str]:
    """What the device programs of a case need beyond a plain step, in the words of the table."""
    with tempfile.TemporaryDirectory() as folder:
        config = run_config(case, Path(folder))
        method = build_method(config.method.name, dense_module(config), config.method.options)
    exporter = CutExporter(config)
    cuts = [method.cut_shape(level, round_index=0, device="", seed=0) for level in method.levels()]
    steps = [exporter.step(method.program(cut)) for cut in cuts]
    return frozenset(words for step in steps for name, words in FEATURES.items() if getattr(step, name))


def expected(case: Case, runtime: str) -> str:
    """``trained``, or ``refused: <what the runtime lacks>``, by the table; a runtime without a column lacks nothing."""
    rows = table()
    lacking = sorted(need for need in needs(case) if rows[need].get(runtime, TRAINED) != TRAINED)
    return f"{REFUSED}{' and '.join(lacking)}" if lacking else TRAINED
