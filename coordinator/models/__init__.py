"""Models by name. A new model is one new file here and one line in :data:`MODELS`."""

from __future__ import annotations

from coordinator.models.catalog import ModelEntry, build_model, example_input, input_spec, model_entry

__all__ = ["MODELS", "ModelEntry", "build_model", "example_input", "input_spec", "model_entry"]

MODELS: dict[str, ModelEntry] = {
    "mlp": ModelEntry("coordinator.models.mlp:mlp", (64,), 10, layout="features"),
    "conv2": ModelEntry("coordinator.models.conv2:conv2", (1, 28, 28), 62),
    "resnet8": ModelEntry("coordinator.models.resnet:resnet8", (3, 32, 32), 10),
    "resnet20": ModelEntry("coordinator.models.resnet:resnet20", (3, 32, 32), 10),
    "resnet18": ModelEntry("coordinator.models.resnet:resnet18", (3, 32, 32), 10),
    "resnet34": ModelEntry("coordinator.models.resnet:resnet34", (3, 32, 32), 100),
    "vgg11": ModelEntry("coordinator.models.vgg:vgg11", (3, 32, 32), 10),
    "depthwise": ModelEntry("coordinator.models.depthwise:depthwise", (3, 32, 32), 10),
    "vit": ModelEntry("coordinator.models.vit:vit", (3, 32, 32), 10),
    "lstm": ModelEntry("coordinator.models.lstm:lstm", (80,), 90, layout="tokens", vocabulary=90),
}
