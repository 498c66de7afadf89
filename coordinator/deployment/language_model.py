"""The final state of a language model's run in the files that others read, held against torch before anybody has them.

``onnx`` writes on devices, ``transformers`` and ``peft`` are folders of those packages, ``gguf`` is for llama.cpp.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from coordinator.config.run_config import RunConfig
from coordinator.deployment.inference_folder import staged
from coordinator.exporting.run_data import load_run_data
from coordinator.exporting.run_tokenizer import found_tokenizer
from coordinator.language.folder import tensor_shapes, write_folder
from coordinator.language.gguf_file import write_gguf
from coordinator.language.merge import Factors, base_values, factors_of, merged
from coordinator.language.peft_adapter import write_adapter
from coordinator.language.peft_virtual import addition_kind, write_virtual
from coordinator.language.source import PREFIX, LanguageSource, source_of
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError, ParityError
from edge.contracts.language import LANGUAGE_NAME, LanguageManifest
from edge.contracts.manifest import ArtifactFile
from edge.inference.writer import Writer
from edge.language.tokenizer import Tokenizer
from edge.language.windows import IGNORED
from edge.runtimes import DEFAULT
from edge.system.atomic_files import write_whole
from export.language.base_weights import dequantised

if TYPE_CHECKING:
    from torch import nn

Precision = Literal["float32", "int8"]
FORMATS = ("onnx", "transformers", "peft", "gguf")
TOLERANCE = 1e-4
"""Largest difference of a float32 model's logit from torch's, relative to the largest of torch's."""
POSITIONS = 2048
"""Of held-out text that a file is measured on, at most, in whole windows."""
_POSITIONS_AT_ONCE = 256
"""Whose logits are in memory: 52 MB of 50,000 symbols."""
_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class FinalModel:
    """A run's language model, its values made when they are asked for.

    Attributes:
        tokenizer: its file; None: there is none.
        given: the base file that devices had; None: it is made of the model's source, as for them.
    """

    config: RunConfig
    state: State
    tokenizer: Path | None
    given: Mapping[str, np.ndarray] | None = None

    @cached_property
    def source(self) -> LanguageSource:
        """Where the base's values come from."""
        return source_of(self.config.model.build.removeprefix(PREFIX), self.config.model.options)

    @cached_property
    def factors(self) -> Factors:
        """What was trained; nothing where that are additions."""
        return {} if self.kind else factors_of(self.state.tensors, self.source.architecture)

    @cached_property
    def kind(self) -> str:
        """Of additions: as :func:`addition_kind`."""
        return addition_kind(self.state.tensors)

    def base(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor of the base as devices computed with it."""
        if (given := self.given) is not None:
            return ((name, dequantised(name, given)) for name in tensor_shapes(self.source.architecture))
        values = self.source.values(self.config.federation.seed)
        return base_values(values, self.source.architecture, self.source.precision)

    def values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor, merged."""
        return merged(self.base(), self.factors)


def deploy_language(
    config: RunConfig,
    state: State,
    out: Path,
    *,
    format: str = "",
    precision: Precision = "float32",
    max_drop: float,
    tokenizer: Path | None = None,
    base: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Write the model of ``state`` into the new folder ``out``; what it is, and what was measured of it.

    Args:
        format: one of :data:`FORMATS`; ``onnx`` where empty.
        max_drop: by what share the perplexity of an int8 model may be above torch's in float32.
        base: the base file that devices had, as arrays; None: it is made of the model's source.
        tokenizer: a ``tokenizer.json``; None: that of the model's folder or of the held-out text, where they have one.

    Raises:
        ConfigError: ``out`` is not empty, a format that is unknown or has no int8, or cannot say what the model is.
        DataError: a tokenizer of another model.
        PlanError: a state without factors or additions of this model.
        ParityError: the files disagree with torch, or the perplexity is too high.
    """
    chosen = format or FORMATS[0]
    if chosen not in FORMATS:
        raise ConfigError([f"--format: '{format}' is not known of language models; known: {', '.join(FORMATS)}"])
    if precision == "int8" and chosen in ("transformers", "peft"):
        raise ConfigError([f"--int8: {chosen} folders hold float32; leave it out, or deploy it as onnx or gguf"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError([f"--out: {out} is there already and is not an empty folder; name a new one"])
    model = FinalModel(config, state, tokenizer or found_tokenizer(config), base)
    _check_kind(model.kind, chosen)
    if model.tokenizer is not None:
        Tokenizer(model.tokenizer).check(model.source.architecture.vocabulary)
    found: dict[str, Any] = {"format": chosen, "precision": precision, "factors": len(model.factors)}
    found |= {"additions": model.kind} if model.kind else {}
    with staged(out) as folder:
        if chosen == "onnx":
            found |= _onnx(model, folder, precision, max_drop)
        elif chosen == "transformers":
            write_folder(folder, model.source.architecture, model.values(), origin=model.source.folder)
        elif chosen == "peft":
            found |= _peft(model, folder, out)
        else:
            title = config.federation.name
            found["tokenizer"] = write_gguf(
                folder / "model.gguf",
                model.source.architecture,
                model.values(),
                precision=precision,
                title=title,
                tokenizer=model.tokenizer,
            )
        if chosen == "transformers" and model.tokenizer is not None and not (folder / _TOKENIZER).exists():
            shutil.copyfile(model.tokenizer, folder / _TOKENIZER)
        found["bytes"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"out": str(out), **found}


def _check_kind(kind: str, chosen: str) -> None:
    """Check that what a run has trained can be written as ``chosen``.

    Raises:
        ConfigError: it cannot.
    """
    if kind == "adapter":
        raise ConfigError(
            [
                f"--format: '{chosen}' has no place for bottleneck adapters: with an activation between their layers "
                "no weights of the model are the same function, and peft has no such kind; the run's "
                "checkpoints/final.safetensors has their tensors"
            ]
        )
    if kind and chosen != "peft":
        raise ConfigError(
            [f"--format: '{chosen}' holds a model's weights, and a {kind} is none of them; use --format peft"]
        )


def _peft(model: FinalModel, folder: Path, out: Path) -> dict[str, Any]:
    """An adapter beside the public model; where there is none, beside the base, which is written too."""
    source = model.source
    if source.folder is not None and source.precision == "float32":
        base = str(source.folder.resolve())
    else:
        (folder / "base").mkdir()
        write_folder(folder / "base", source.architecture, model.base(), origin=source.folder)
        base = str((out / "base").resolve())
    if model.kind:
        write_virtual(folder, source.architecture, model.state.tensors, base=base)
    else:
        write_adapter(folder, source.architecture, model.factors, base=base)
    return {"base": base}


def _onnx(model: FinalModel, folder: Path, precision: Precision, max_drop: float) -> dict[str, Any]:
    from export.language.inference import MINIMUM_RUNTIME_VERSION, WEIGHTS, write_inference

    shape, end = model.source.architecture, None
    write_inference(folder, shape, model.values(), precision)
    if model.tokenizer is not None:
        shutil.copyfile(model.tokenizer, folder / _TOKENIZER)
        end = Tokenizer(folder / _TOKENIZER).end
    manifest = LanguageManifest(
        federation=model.config.federation.name,
        rounds=model.state.round,
        model=model.config.model.build,
        runtime=DEFAULT,
        minimum_runtime_version=MINIMUM_RUNTIME_VERSION,
        precision=precision,
        graph=_file(folder / "model.onnx"),
        weights=_file(folder / WEIGHTS),
        tokenizer=None if model.tokenizer is None else _file(folder / _TOKENIZER),
        end=end,
        vocabulary=shape.vocabulary,
        context=shape.context,
        positions=0,
        perplexity=0.0,
        torch_perplexity=0.0,
        max_error=0.0,
    )
    write_whole(folder / LANGUAGE_NAME, manifest.to_bytes())
    manifest = _measured(model, manifest, folder)
    if precision == "float32" and not manifest.max_error <= TOLERANCE:
        raise ParityError(
            f"deploy: logits of {manifest.graph.name} differ from torch's by {manifest.max_error:.2e} of the largest, "
            f"{TOLERANCE:g} allowed; report it with the model"
        )
    if precision == "int8" and not manifest.perplexity <= manifest.torch_perplexity * (1 + max_drop):
        raise ParityError(
            f"deploy: in int8 the perplexity on {manifest.positions} held-out positions is {manifest.perplexity:.4f}, "
            f"torch's is {manifest.torch_perplexity:.4f}, {max_drop:g} of it more is allowed; deploy it in float32, or "
            "allow more with --max-drop"
        )
    write_whole(folder / LANGUAGE_NAME, manifest.to_bytes())
    return {
        "positions": manifest.positions,
        "perplexity": manifest.perplexity,
        "torch_perplexity": manifest.torch_perplexity,
        "max_error": manifest.max_error,
        "tokenizer": _TOKENIZER if model.tokenizer is not None else "",
    }


def _file(path: Path) -> ArtifactFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ArtifactFile(path.name, digest, path.stat().st_size)


def _measured(model: FinalModel, manifest: LanguageManifest, folder: Path) -> LanguageManifest:
    """The manifest with the figures of the model in ``folder``, by its runtime and by torch."""
    import msgspec

    from export.language.causal_model import meta_model
    from export.language.held_base import with_base

    x, y = _windows(model)
    module = cast("nn.Module", with_base(meta_model(model.source.architecture, "float32"), model.values())).eval()
    writer = Writer(folder)
    error, largest, sums, count = 0.0, 1e-12, [0.0, 0.0], 0
    at_once = max(1, _POSITIONS_AT_ONCE // x.shape[1])
    by_torch = _logits(module, (x[i : i + at_once] for i in range(0, len(x), at_once)))
    for row, targets, expected in zip(x, y, by_torch, strict=True):
        found = writer.logits(row)
        error, largest = max(error, float(np.abs(found - expected).max())), max(largest, float(np.abs(expected).max()))
        counted = targets != IGNORED
        count += int(counted.sum())
        for side, logits in enumerate((found, expected)):
            sums[side] += _entropy(logits[counted], targets[counted])
    given = model.config.evaluation.data or model.config.data.source
    measured = count if given else 0
    perplexity, torch_perplexity = (math.exp(min(total / max(count, 1), 700.0)) for total in sums)
    return msgspec.structs.replace(
        manifest,
        positions=measured,
        perplexity=perplexity,
        torch_perplexity=torch_perplexity,
        max_error=error / largest,
    )


def _logits(module: nn.Module, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """float32 [T, vocabulary] of each window of ``batches`` [B, T], by torch."""
    import torch

    for batch in batches:
        with torch.no_grad():
            yield from module(torch.from_numpy(batch)).transpose(1, 2).numpy()


def _entropy(logits: np.ndarray, targets: np.ndarray) -> float:
    scores = logits.astype(np.float64)
    largest = scores.max(1, keepdims=True)
    sums = np.log(np.exp(scores - largest).sum(1)) + largest[:, 0]
    return float((sums - scores[np.arange(len(targets)), targets]).sum())


def _windows(model: FinalModel) -> tuple[np.ndarray, np.ndarray]:
    """Held-out windows and what follows, int64 [N, T]; random symbols where a run has no text here."""
    config, shape = model.config, model.source.architecture
    if config.evaluation.data or config.data.source:
        data = load_run_data(config)
        x = np.asarray(data.x_test, np.int64)
        y = np.asarray(data.y_test["y"] if data.y_test.dtype.names else data.y_test, np.int64)
        most = max(1, POSITIONS // x.shape[1])
        return x[:most], y[:most]
    draw = np.random.default_rng(0)
    x = draw.integers(0, shape.vocabulary, (2, min(64, shape.context)))
    return x, np.roll(x, -1, axis=1)
