"""One training step of ResNet-20 three ways in one run: ours on ExecuTorch, its own recipe, and torch.

    python -m benchmarks.executorch_stock --steps 3

The recipe is the wheel's own example (``executorch/extension/training/examples/CIFAR``): ``torch.export`` of model and
loss, ``_export_forward_backward``, ``to_edge``, ``to_executorch``, then its training module and its SGD with momentum
and weight decay. It does not take batch norm's running statistics: there, and only there, they are off. Each side is a
process of its own and blocks alternate: ten steps of ours and of torch on one thread, one step of the recipe, which
may use every core. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from coordinator.cli.bench_device import exported_inputs
from coordinator.cli.bench_sides import DeviceSide, TorchSide
from coordinator.cli.model_arguments import ModelArguments
from coordinator.models.catalog import build_model

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4


class ModelWithLoss(nn.Module):
    """What the recipe exports: the loss, and the prediction beside it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(x)
        return self.criterion(logits, y), logits.detach().argmax(dim=1)


class StockSide:
    """A child process that steps the recipe's program when told to."""

    def __init__(self, model: str, batch: int) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.executorch_stock",
            "--model",
            model,
            "--batch",
            str(batch),
            "--stock",
        ]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._answer()

    def step(self) -> dict[str, float]:
        """Milliseconds and loss of one step."""
        assert self._child.stdin is not None
        self._child.stdin.write("step\n")
        self._child.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def _answer(self) -> dict[str, float]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"the stock side ended with status {self._child.wait()}; see its error above")
        answer: dict[str, float] = json.loads(line)
        return answer


def stock_side(model: str, batch: int) -> None:
    """Export by the recipe, then one step for every line on stdin; each answer is a JSON line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = without_running_statistics(build_model(model)).train()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    expected = torch_losses(net, x, y, steps=2)
    started = time.perf_counter()
    program = stock_program(ModelWithLoss(net), x, y)
    exported_s = time.perf_counter() - started

    from executorch.extension.training import get_sgd_optimizer
    from executorch.extension.training.pybindings._training_module import _load_for_executorch_for_training_from_buffer

    module = _load_for_executorch_for_training_from_buffer(program)
    optimizer = None
    print(json.dumps({"export_s": exported_s, "torch_losses": expected}), flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        loss = module.forward_backward("forward", (x, y))[0].item()
        if optimizer is None:
            optimizer = get_sgd_optimizer(module.named_parameters(), LR, MOMENTUM, 0.0, WEIGHT_DECAY, False)
        optimizer.step(module.named_gradients())
        print(json.dumps({"step_ms": (time.perf_counter() - started) * 1e3, "loss": loss}), flush=True)


def without_running_statistics(net: nn.Module) -> nn.Module:
    """``net`` with batch norm that knows the batch only."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return net


def stock_program(module: nn.Module, x: Tensor, y: Tensor) -> bytes:
    """The program as upstream's example makes it."""
    from executorch.exir import EdgeCompileConfig, to_edge
    from torch.export import export
    from torch.export.experimental import _export_forward_backward

    joint = _export_forward_backward(export(module, (x, y), strict=True))
    edge = to_edge(joint, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    return bytes(edge.to_executorch().buffer)


def torch_losses(net: nn.Module, x: Tensor, y: Tensor, *, steps: int) -> list[float]:
    """Losses of the first steps in torch, from the weights that the program starts with; ``net`` stays as it is."""
    import copy

    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(model: str, batch: int, steps: int) -> dict[str, object]:
    """Median step times of the three sides, and their ratios."""
    with tempfile.TemporaryDirectory(prefix="apportion-stock-") as name:
        folder = Path(name)
        inputs = exported_inputs(ModelArguments(model, (), 0, batch), "executorch", folder)
        stock = StockSide(model, batch)
        try:
            with DeviceSide(inputs, 1) as ours, TorchSide(inputs, 1) as eager:
                ours.block(), eager.block()
                ours_ms, torch_ms, stock_steps = [], [], []
                for _ in range(steps):
                    ours_ms.append(ours.block())
                    torch_ms.append(eager.block())
                    stock_steps.append(stock.step())
        finally:
            stock.close()
    stock_ms = statistics.median(step["step_ms"] for step in stock_steps)
    ours_median, torch_median = statistics.median(ours_ms), statistics.median(torch_ms)
    return {
        "schema": "apportion.benchmark.executorch_stock/1",
        "model": model,
        "batch": batch,
        "stock_steps": steps,
        "stock_step_ms": round(stock_ms, 1),
        "ours_step_ms": round(ours_median, 2),
        "torch_step_ms": round(torch_median, 2),
        "stock_over_ours": round(stock_ms / ours_median, 1),
        "stock_over_torch": round(stock_ms / torch_median, 1),
        "ours_over_torch": round(ours_median / torch_median, 3),
        "stock_losses": [round(step["loss"], 4) for step in stock_steps],
        "torch_losses": [round(loss, 4) for loss in stock.ready["torch_losses"]],  # type: ignore[attr-defined]
        "stock_export_s": round(stock.ready["export_s"], 1),
    }


def main() -> None:
    """Print the comparison, or be its stock side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20", help="one that takes 3x32x32 images and has 10 classes")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3, help="steps of the recipe; about ten seconds each")
    parser.add_argument("--stock", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.stock:
        stock_side(chosen.model, chosen.batch)
    else:
        print(json.dumps(compare(chosen.model, chosen.batch, chosen.steps)))


if __name__ == "__main__":
    main()
