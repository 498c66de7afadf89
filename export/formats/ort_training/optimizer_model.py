"""The optimizer model for the runtime's C, Java and Swift APIs; the agent's own rule does the same, and more.

AdamW as torch writes it (mode 0, the builder's own default is another formula), without decay: a decay that an order
names is ``parameter *= 1 - lr * decay`` before the step. Plain SGD. Everything else has no operator in this runtime.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from export.formats.ort_training.training_model import MICROSOFT, with_versions
from export.training_step import Optimizer

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Torch's defaults. They are attributes of the operator, so they cannot come from the order."""


def optimizer_model(rule: Optimizer) -> onnx.ModelProto | None:
    """The model of ``rule``, None where the runtime has no operator for it."""
    lr = helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1])
    step = helper.make_tensor_value_info("step", TensorProto.INT64, [1])
    sequences = ["params", "gradients", "first_order_moments"]  # the API asks for moments even where nothing reads them
    if rule.kind == "adamw":
        sequences.append("second_order_moments")
        node = helper.make_node(
            "AdamWOptimizer",
            ["learning_rate", "step", *sequences],
            ["updated"],
            domain=MICROSOFT,
            alpha=BETAS[0],
            beta=BETAS[1],
            epsilon=EPSILON,
            weight_decay=0.0,
            correct_bias=1,
            adam_mode=0,
        )
    elif rule.kind == "sgd" and not rule.momentum:
        node = helper.make_node(
            "SGDOptimizerV2", ["learning_rate", "params", "gradients"], ["updated"], domain=MICROSOFT
        )
    else:
        return None
    inputs = [helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None) for name in sequences]
    updated = helper.make_tensor_value_info("updated", TensorProto.BOOL, [1])
    graph = helper.make_graph([node], "optimizer", [lr, step, *inputs], [updated])
    return with_versions(helper.make_model(graph))
