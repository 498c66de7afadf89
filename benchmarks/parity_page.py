"""The parity table as a page of Markdown: every cell a line, refused ones with their reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.parity_cells import BATCH, CALM, FORMS, LORA, MODELS, PATIENCE, STEPS, Cell, blocks_to_freeze
from coordinator.models.catalog import build_model
from coordinator.submodels.freeze import block_names
from export.gate_values import ORDINARY
from export.tensor_error import FACTOR, FLOOR

Row = dict[str, Any]

INTRODUCTION = f"""\
# One training step on every runtime beside torch in float64

`python -m benchmarks.parity_table {{folder}}`, then the same with `--page`. Every line is an export of the training
step at batch {BATCH} with its parity gate (cross-entropy; SGD with momentum {{momentum}} and weight decay {{decay}};
onnxruntime_training: AdamW, the rule its own API can step with), one thread: formula values, {ORDINARY.batch} examples,
all gradients of one step against torch in float64. The error of a tensor is
`max|g - g64| / max(max|g64|, 1e-4 of the largest over all tensors)`; the worst tensor counts. torch float32 is measured
alike on the same values. A graph passes up to {FACTOR:.0f} times torch's own error, which is taken as {FLOOR:.0e} where
it is less (25 float32 roundings).

Losses are those of {STEPS} steps on one batch in the runtime's own session, in the runtime's own environment, from the
values that torch starts from; their error is the largest difference from float64 relative to the largest loss. One
rectifier whose input is so close to 0 that two roundings disagree on its sign changes every later step, in torch as in
a runtime; so values on which torch float32 itself leaves float64 by more than {CALM:.0e} are passed over, and the
closest of up to {PATIENCE} sets of values counts. Where more than one was needed, the loss error says so.

Forms: `full`; `frozen`, the stem and the first two thirds of the blocks without gradient (below); `fedhm:4`,
factorized at rank outputs / 4 with Frobenius decay. `vit+lora` is the vision transformer under `--cut {LORA}`:
everything frozen but the factors of its attention and the head; its `frozen` also freezes the factors in the first
blocks, its `fedhm:4` factorizes the layers without additive factors and trains them.

Versions: torch {{torch}}, {{versions}}.
x86-64 (AMD EPYC), other work on both cores: nothing here is a timing.
"""


def page(rows: dict[Cell, Row], cells: Sequence[Cell], folder: str) -> str:
    """The page of all ``cells``, whose rows are kept in ``folder``; one without a row is shown as not measured."""
    from export.gate_values import HYPER

    releases = {row["runtime"]: row["runtime_version"] for row in rows.values() if "runtime_version" in row}
    versions = ", ".join(f"{name} {release}" for name, release in sorted(releases.items()))
    head = INTRODUCTION.format(
        folder=folder,
        momentum=HYPER["momentum"],
        decay=HYPER["weight_decay"],
        torch=torch.__version__,
        versions=versions,
    )
    parts = [head, _summary(rows, cells), "## Gradients of one step, losses of five", _gradients(rows, cells)]
    parts += ["## What `frozen` freezes", _frozen(), "## Losses", _losses(rows, cells)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _summary(rows: dict[Cell, Row], cells: Sequence[Cell]) -> str:
    lines = [
        "| runtime | cells | through the gate | refused at export | failed | worst error / torch's | worst loss error |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for runtime in dict.fromkeys(cell.runtime for cell in cells):
        mine = [rows.get(cell, {}) for cell in cells if cell.runtime == runtime]
        passed = [row for row in mine if row.get("outcome") == "exported"]
        counts = [sum(row.get("outcome") == kind for row in mine) for kind in ("exported", "refused", "failed")]
        worst = max(passed, key=_ratio, default=None)
        loss = max(passed, key=lambda row: float(row["loss_rel_err"]), default=None)
        shown = "" if worst is None else f"{_ratio(worst):.1f} ({worst['model']} {worst['form']})"
        loss_shown = "" if loss is None else f"{loss['loss_rel_err']:.1e} ({loss['model']} {loss['form']})"
        lines.append(f"| {runtime} | {len(mine)} | {counts[0]} | {counts[1]} | {counts[2]} | {shown} | {loss_shown} |")
    return "\n".join(lines)


def _gradients(rows: dict[Cell, Row], cells: Sequence[Cell]) -> str:
    lines = [
        "| model | form | runtime | trained of all | gradient error | torch float32's | ratio | loss error | torch's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in _by_model(cells):
        row = rows.get(cell)
        start = f"| {cell.model} | {cell.form} | {cell.runtime} |"
        if row is None:
            lines.append(f"{start} not measured ||||||")
        elif row["outcome"] != "exported":
            lines.append(f"{start} {row['outcome']}: {_plain(row['reason'])} ||||||")
        else:
            lines.append(
                f"{start} {row['trained']:,} of {row['parameters']:,} | {row['max_grad_rel_err']:.1e} | "
                f"{row['torch_fp32_rel_err']:.1e} | {_ratio(row):.1f} | {row['loss_rel_err']:.1e}{_sets(row)} | "
                f"{row['torch_fp32_loss_rel_err']:.1e} |"
            )
    return "\n".join(lines)


def _frozen() -> str:
    lines = [
        "K of `--freeze K`: two thirds of the blocks, to the nearest. A model without blocks has its layers as blocks.",
        "",
        "| model | blocks | K | last frozen block |",
        "|---|---|---|---|",
    ]
    for model in MODELS:
        name = model.removesuffix("+lora")
        frozen, count = blocks_to_freeze(name)
        lines.append(f"| {model} | {count} | {frozen} | `{block_names(build_model(name))[frozen - 1]}` |")
    return "\n".join(lines)


def _losses(rows: dict[Cell, Row], cells: Sequence[Cell]) -> str:
    lines = [
        f"The same batch in each of the {STEPS} steps. torch's lines stand once where runtimes start alike.",
        "",
        "| model | form | by | " + " | ".join(f"step {i + 1}" for i in range(STEPS)) + " |",
        "|---|---|---|" + "---|" * STEPS,
    ]
    shown: set[tuple[str, str, str]] = set()
    for cell in _by_model(cells):
        row = rows.get(cell)
        if row is None or "losses" not in row:
            continue
        by = {cell.runtime: row["losses"]}
        for kind in ("float64", "float32"):
            name = f"torch {kind}" + (", AdamW" if row["optimizer"] == "adamw" else "")
            by[name] = row[f"losses_{kind}"]
        for name, losses in by.items():
            line = f"| {cell.model} | {cell.form} | {name} | " + " | ".join(f"{loss:.7g}" for loss in losses) + " |"
            key = (cell.model, cell.form, line)
            if key not in shown:
                shown.add(key)
                lines.append(line)
    return "\n".join(lines)


def _by_model(cells: Sequence[Cell]) -> list[Cell]:
    order = {cell: i for i, cell in enumerate(cells)}
    return sorted(cells, key=lambda cell: (MODELS.index(cell.model), FORMS.index(cell.form), order[cell]))


def _ratio(row: Row) -> float:
    return float(row["max_grad_rel_err"]) / max(float(row["torch_fp32_rel_err"]), 1e-30)


def _sets(row: Row) -> str:
    return f" ({row['loss_sets']} sets)" if row.get("loss_sets", 1) > 1 else ""


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
