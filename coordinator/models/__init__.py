"""Models by name. A new model is one new file here and one line in :data:`MODELS`."""

from __future__ import annotations

from coordinator.models.entry import ModelEntry

__all__ = ["MODELS", "ModelEntry"]

MODELS: dict[str, ModelEntry] = {
    "mlp": ModelEntry("coordinator.models.mlp:mlp", (64,), 10, layout="features"),
    "conv2": ModelEntry("coordinator.models.conv2:conv2", (1, 28, 28), 62),
    "prism_cnn": ModelEntry("coordinator.models.prism_cnn:prism_cnn", (1, 28, 28), 62),
    "resnet8": ModelEntry("coordinator.models.resnet:resnet8", (3, 32, 32), 10),
    "resnet20": ModelEntry("coordinator.models.resnet:resnet20", (3, 32, 32), 10),
    "resnet18": ModelEntry("coordinator.models.resnet:resnet18", (3, 32, 32), 10),
    "resnet34": ModelEntry("coordinator.models.resnet:resnet34", (3, 32, 32), 100),
    "resnet20_slt": ModelEntry("coordinator.models.resnet_slt:resnet20_slt", (3, 32, 32), 10),
    "resnet44_slt": ModelEntry("coordinator.models.resnet_slt:resnet44_slt", (3, 64, 64), 200),
    "resnet56_slt": ModelEntry("coordinator.models.resnet_slt:resnet56_slt", (3, 64, 64), 1000),
    "densenet40": ModelEntry("coordinator.models.densenet:densenet40", (3, 32, 32), 10),
    "mobilenet_v3_small": ModelEntry("coordinator.models.mobilenet_v3:mobilenet_v3_small", (3, 32, 32), 10),
    "vgg11": ModelEntry("coordinator.models.vgg:vgg11", (3, 32, 32), 10),
    "depthwise": ModelEntry("coordinator.models.depthwise:depthwise", (3, 32, 32), 10),
    "vit": ModelEntry("coordinator.models.vit:vit", (3, 32, 32), 10),
    "deit_tiny": ModelEntry("coordinator.models.deit:deit_tiny", (3, 32, 32), 10),
    "vit_small": ModelEntry("coordinator.models.deit:vit_small", (3, 224, 224), 10),
    "lstm": ModelEntry("coordinator.models.lstm:lstm", (80,), 90, layout="tokens", vocabulary=90),
    "review_lstm": ModelEntry("coordinator.models.lstm:review_lstm", (200,), 2, layout="tokens", vocabulary=1001),
}
