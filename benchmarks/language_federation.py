"""A federation of twelve devices fine-tunes a language model by role, beside central LoRA on as many symbols.

    APPORTION_DATA=... python -m benchmarks.language_federation --size small --out runs/language
    APPORTION_DATA=... python -m benchmarks.language_federation --size gpt2 --out runs/language-gpt2

``tinyshakespeare.txt`` is dealt by speaker: some roles train a tokenizer and, from random weights, the base; others are
the devices'; the last are held out. The base is written as a public model's folder, which the run file names. Ranks 2,
4, 8 and 16 are three devices' each, over MQTT, by processes of their own. Central LoRA has the same base as devices
compute with it, one rank for all, and the devices' windows in one place.

Prints one JSON line; the sizes of a device's update and its measured peak are the run's own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.data.datasets import Dataset
from coordinator.exporting.base_file import computing_module
from coordinator.language.folder import write_folder
from coordinator.language.random_weights import random_values
from coordinator.reporting.environment import environment
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import Factor, LayerCut
from edge.contracts.streams import permutation, stream_seed
from export.language.architecture import GPT2, Architecture
from export.language.causal_model import ADAPTED, CausalModel

RANKS, BUDGETS_MB = (16, 8, 4, 2), (512, 384, 256, 192)
DEVICES_OF_EACH = 3
PREPARED = "prepared.json"
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "shape": msgspec.structs.replace(
            GPT2, vocabulary=512, hidden=128, layers=4, heads=4, kv_heads=4, head_size=32, feed_forward=512, context=64
        ),
        "length": 32,
        "pretraining_steps": 300,
        "batch": 8,
        "rounds": 3,
    },
    "small": {
        "shape": msgspec.structs.replace(
            GPT2, vocabulary=1024, hidden=256, layers=6, heads=4, kv_heads=4, feed_forward=1024, context=128
        ),
        "length": 64,
        "pretraining_steps": 400,
        "batch": 8,
        "rounds": 6,
    },
    "gpt2": {
        "shape": GPT2,
        "length": 128,
        "pretraining_steps": 160,
        "pretraining_batch": 8,
        "batch": 4,
        "rounds": 3,
        "device_windows": 288,
    },
}
RUN = """
[federation]
name = "by-role"
rounds = {rounds}
seed = 1
[model]
build = "language:{folder}"
input = [{length}]
[task]
name = "next-token"
[method]
name = "{method}"
levels = [16, 8, 4, 2]
{options}
[data]
source = "benchmarks.language_federation:by_role"
path = "{data}"
partition = "file-order"
[training]
optimizer = "adam"
lr = {lr}
batch = {batch}
[evaluation]
norm = "running"
every = {every}
batch = 16
[cohort]
join-timeout-s = 600
deadline-s = 36000
"""


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """(Role, what it says) of every speech of the plays, in order."""
    for part in text.split("\n\n"):
        role, _, said = part.strip().partition(":\n")
        if said:
            yield role, f"{role}:\n{said}\n\n"


def parts_by_role(text: str) -> tuple[str, list[str], list[str]]:
    """Text to begin from, and the roles' texts of the devices and held out, by a draw of each role's own."""
    roles: dict[str, list[str]] = {}
    for role, speech in speeches(text):
        roles.setdefault(role, []).append(speech)
    first, devices, held_out = list[str](), list[str](), list[str]()
    for role in sorted(roles):
        draw = stream_seed(1, f"role {role}") % 10
        (first if draw < 4 else devices if draw < 8 else held_out).append("".join(roles[role]))
    return "".join(first), devices, held_out


def windows(symbols: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y [N, length], int64, one window after the other; what is left over is dropped."""
    count = max(0, (len(symbols) - 1) // length)
    flat = np.asarray(symbols[: count * length + 1], np.int64)
    return flat[:-1].reshape(count, length), flat[1:].reshape(count, length)


def prepare(out: Path, size: dict[str, Any]) -> dict[str, float]:
    """Write tokenizer, model folder and windows to ``out``; figures of them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    shape: Architecture = size["shape"]
    text = (Path(os.environ["APPORTION_DATA"]) / "tinyshakespeare.txt").read_text()
    first, devices, held_out = parts_by_role(text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(shape.vocabulary, 8192),
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([first, *devices], trainer)
    made = {}
    for name, texts in (("first", [first]), ("train", devices), ("test", held_out)):
        x, y = zip(*(windows(tokenizer.encode(part).ids, size["length"]) for part in texts), strict=True)
        made[f"x_{name}"], made[f"y_{name}"] = np.concatenate(x), np.concatenate(y)
    if most := size.get("device_windows"):
        for side in ("x", "y"):
            made[f"{side}_train"] = made[f"{side}_train"][:most]
            made[f"{side}_test"] = made[f"{side}_test"][: most // 4]
    np.savez(out / "windows.npz", **{key: value.astype(np.int32) for key, value in made.items()})
    folder = out / "model"
    folder.mkdir()
    values, loss = pretrained(
        shape,
        made["x_first"],
        made["y_first"],
        steps=size["pretraining_steps"],
        batch=size.get("pretraining_batch", 16),
    )
    write_folder(folder, shape, values)
    tokenizer.save(str(out / "tokenizer.json"))  # smaller than a public vocabulary, which runs refuse
    figures = {
        "pretraining_loss": loss,
        "device_windows": len(made["x_train"]),
        "held_out_windows": len(made["x_test"]),
        "roles": len(devices),
        "held_out_roles": len(held_out),
    }
    (out / PREPARED).write_text(json.dumps(figures))
    return figures


def by_role(path: Path, seed: int, holdout: float) -> Dataset:
    """The devices' windows, role after role, and those of the roles held out."""
    with np.load(path / "windows.npz") as held:
        arrays = [held[f"{side}_{name}"].astype(np.int64) for name in ("train", "test") for side in ("x", "y")]
    return Dataset(*arrays, ("0",))


def pretrained(
    shape: Architecture, x: np.ndarray, y: np.ndarray, *, steps: int, batch: int = 16, lr: float = 1e-3
) -> tuple[Iterator[tuple[str, np.ndarray]], float]:
    """The model's tensors after ``steps`` of AdamW from random weights, and its last loss."""
    model = CausalModel(shape)
    with torch.no_grad():
        for name, value in random_values(shape, 1):
            model.get_parameter(name).copy_(torch.from_numpy(value))
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=lr), torch.tensor(0.0)
    order = np.concatenate([permutation(stream_seed(1, "first", epoch), len(x)) for epoch in range(20)])
    for step in range(steps):
        rows = order[(step * batch) % (len(order) - batch) :][:batch]
        rate = lr * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
        loss.backward()
        optimizer.step()
    return ((name, value.detach().numpy()) for name, value in model.named_parameters()), float(loss.detach())


def central(config: Any, data: Dataset, *, rank: int, epochs: int, lr: float) -> float:
    """Perplexity on the held-out windows of LoRA with all devices' windows in one place, ``epochs`` times."""
    base = computing_module(config)
    assert isinstance(base, CausalModel)
    paths = [p for b in range(base.architecture.layers) for p in base.architecture.linears(b)]
    chosen = [p for p in paths if any(p.endswith(pattern.rpartition("*")[2]) for pattern in ADAPTED)]
    model = apply_cut(base, {p: LayerCut(factor=Factor("additive_lora", tuple(range(rank)))) for p in chosen})
    x, y, batch = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train), config.training.batch
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        order = torch.from_numpy(permutation(stream_seed(1, "central", epoch), len(x)))
        for begin in range(0, len(order) - batch + 1, batch):
            rows = order[begin : begin + batch]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return perplexity(model, data)


def perplexity(model: torch.nn.Module, data: Dataset) -> float:
    """Of the held-out windows, all positions together."""
    total = 0.0
    with torch.no_grad():
        for begin in range(0, len(data.x_test), 16):
            x, y = (torch.from_numpy(a[begin : begin + 16]) for a in (data.x_test, data.y_test))
            total += float(torch.nn.functional.cross_entropy(model(x), y, reduction="sum"))
    return math.exp(total / data.y_test.size)


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--out", type=Path, required=True, help="a new folder, or one prepared before")
    parser.add_argument("--only-prepare", action="store_true", help="the base and the windows, for a later run")
    parser.add_argument("--method", default="fedlora")
    parser.add_argument("--options", default="weight-by-examples = true", help="further lines of [method]")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--central-rank", type=int, default=8, help="0: no central LoRA, as an earlier run has it")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    size = SIZES[chosen.size]
    rounds = chosen.rounds or size["rounds"]
    chosen.out.mkdir(parents=True, exist_ok=True)
    prepared = chosen.out / PREPARED
    made = json.loads(prepared.read_text()) if prepared.is_file() else prepare(chosen.out, size)
    if chosen.only_prepare:
        return
    text = RUN.format(
        rounds=rounds,
        folder=(chosen.out / "model").resolve(),
        data=chosen.out.resolve(),
        every=rounds,
        method=chosen.method,
        options=chosen.options,
        lr=chosen.lr,
        **{key: size[key] for key in ("length", "batch")},
    )
    text += "".join(
        f'[[cohort.local]]\ncount = {DEVICES_OF_EACH}\nlevel = "{rank}"\nbudget-mb = {budget}\nceiling = "budget"\n'
        for rank, budget in zip(RANKS, BUDGETS_MB, strict=True)
    )
    config, data = load_config_text(text), by_role(chosen.out, 1, 0.0)
    base = computing_module(config)
    before = perplexity(base, data)
    started = time.monotonic()
    summary = start_run(config, chosen.out / "run", RunOptions())
    federated = summary["evaluation"]["models"]["server"]["perplexity"]
    rank = chosen.central_rank
    reached = central(config, data, rank=rank, epochs=rounds, lr=chosen.lr) if rank else None
    devices = {}
    for row in summary["device_table"]:
        rank = row["level"].removeprefix("rank ")
        kept = devices.setdefault(rank, {"up_mb_per_round": 0.0, "peak_mb": 0.0, "predicted_peak_mb": 0.0})
        kept["up_mb_per_round"] = max(kept["up_mb_per_round"], row["bytes_up"] / row["rounds"] / 1e6)
        kept["peak_mb"] = max(kept["peak_mb"], row["measured_peak_bytes"] / 2**20)
        kept["predicted_peak_mb"] = row["predicted_peak_bytes"] / 2**20
    budgets = dict(zip(map(str, RANKS), BUDGETS_MB, strict=True))
    print(
        json.dumps(
            {
                **made,
                "size": chosen.size,
                "method": chosen.method,
                "rounds": rounds,
                "base_perplexity": before,
                "federated_perplexity": federated,
                "central_perplexity": reached,
                "federated_to_central": federated / reached if reached else None,
                "by_rank": devices,
                "within_budgets": {rank: row["peak_mb"] <= budgets[rank] for rank, row in devices.items()},
                "memory_kills": summary["memory_kills"],
                "wall_s": time.monotonic() - started,
                "environment": environment(),
            }
        )
    )


if __name__ == "__main__":
    main()
