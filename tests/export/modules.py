"""Tiny modules, one per layer family, for the export tests: name -> (module builder, input spec, classes)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from edge.contracts.manifest import InputSpec

CLASSES = 5
IMAGE = InputSpec(layout="chw", shape=(3, 10, 10))
SIGNAL = InputSpec(layout="features", shape=(4, 20))
FEATURES = InputSpec(layout="features", shape=(12,))
TOKENS = InputSpec(layout="tokens", shape=(7,), dtype="int64", vocabulary=11)
SEQUENCE = InputSpec(layout="features", shape=(6, 8))


class Apply(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Head(nn.Module):
    """Flatten and classify, with the feature count found by a trial run."""

    def __init__(self, body: nn.Module, spec: InputSpec) -> None:
        super().__init__()
        self.body = body
        was_training = body.training
        body.eval()
        with torch.no_grad():
            x = (
                torch.zeros(2, *spec.shape)
                if spec.dtype == "float32"
                else torch.zeros(2, *spec.shape, dtype=torch.int64)
            )
            features = body(x).flatten(1).shape[1]
        body.train(was_training)
        self.classifier = nn.Linear(features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x).flatten(1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(x + self.first(x), inplace=True)
        a, b = torch.chunk(self.second(y), 2, dim=1)
        return torch.cat([a, y * b], 1)


class Moves(nn.Module):
    """Assignment into a part, circular padding, a roll, a standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).roll((1, 2), (2, 3))
        z = y.clone()
        z[:, 0] = 0.0
        return z.abs() / (1.0 + y.std((2, 3), keepdim=True))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y)[0]


class ScaledAttention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + y.transpose(1, 2).reshape(batch, length, width)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.rnn = kind(8, 5, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0][:, -1]


class Stateful(nn.Module):
    """An LSTM with a given initial state, whose last cell is used as well."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 5)
        self.start = nn.Parameter(torch.zeros(1, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        start = self.start.expand(1, x.shape[0], 5).contiguous()
        y, (_, cell) = self.rnn(x.transpose(0, 1), (start, start))
        return torch.cat([y[0], cell[0]], 1)


class CellUser(nn.Module):
    """An LSTM of which the last hidden and cell states are used."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _, (hidden, cell) = self.rnn(x.transpose(0, 1))
        return torch.cat([hidden[0], cell[0]], 1)


class Embedded(nn.Module):
    def __init__(self, rows: int, **options: object) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 6, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


class BiasTable(nn.Module):
    """Attention biases by distance: one row per head, read and written through an index of two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.zeros(2, 6))
        places = torch.arange(6)
        self.register_buffer("distance", (places[:, None] - places[None, :]).abs(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2)
        return (scores[:, None] + self.biases[:, self.distance]).softmax(-1) @ x[:, None]


class LastPlace(nn.Module):
    """Causal attention with a mask read by example and place, and the one place of each example that the data names:
    how classifiers of texts find the last token."""

    def forward(self, x: Tensor) -> Tensor:
        examples, places = torch.arange(x.shape[0]), torch.arange(x.shape[1])
        part = torch.ones(x.shape[0], x.shape[1]).cumsum(1)
        later, earlier = (part[examples[:, None], places] for _ in range(2))
        scores = (x @ x.transpose(1, 2)).masked_fill(later[:, :, None] < earlier[:, None, :], -1e9)
        named = (x.sum(2) > 0).long().mul(places).argmax(1)
        return (scores.softmax(-1) @ x)[examples, named - x.shape[1]]


class PositionTable(nn.Module):
    """Waves of several lengths, whose numbering rounds a division; added to every example of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.arange(8, dtype=torch.int64)
        lengths = 100.0 ** (2 * torch.div(numbers, 2, rounding_mode="floor") / 8)
        places = torch.ones(x.shape[0], 6).cumsum(1)
        return x * (places[:, :, None] / lengths).sin()


class FilledTable(nn.Module):
    """A table that the first run makes in the input's size."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(()))
        self.register_buffer("table", torch.zeros(1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.table.shape[0] != x.shape[1]:
            places = torch.arange(x.shape[1], dtype=x.dtype)
            self.table = (places[:, None] - places[None, :]) ** 2
        return (self.slope * self.table).neg().softmax(-1) @ x


class ChannelsLastPool(nn.Module):
    """A norm over channels that come last, then global pooling of a permuted image."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.norm(x.permute(0, 2, 3, 1)).tanh().permute(0, 3, 1, 2))


class Unfolded(nn.Module):
    """Weighted windows of an image, added back up where they overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(27, 1))

    def forward(self, x: Tensor) -> Tensor:
        windows = F.unfold(x, 3, padding=1, stride=2)
        return F.fold((windows * self.weight).tanh(), (10, 10), 3, padding=1, stride=2)


def _conv(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def _hooked(layer: nn.Module) -> nn.Module:
    """Weight norm as a hook before the forward, which torch had before parametrizations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def _activation(layer: nn.Module) -> tuple[Callable[[], nn.Module], InputSpec]:
    return lambda: nn.Sequential(nn.Linear(12, 9), layer, nn.Linear(9, 9), layer), FEATURES


BODIES: dict[str, tuple[Callable[[], nn.Module], InputSpec]] = {
    "linear": (lambda: nn.Linear(12, 9, bias=False), FEATURES),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 7, 3)), IMAGE),
    "conv2d-strided": (lambda: nn.Sequential(nn.Conv2d(3, 6, 5, 2, 2), nn.ReLU(), nn.Conv2d(6, 7, 3, 2, 1)), IMAGE),
    "conv2d-dilated": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 3, dilation=2, padding=2)), IMAGE),
    "conv2d-grouped": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, 2, 1, groups=4)), IMAGE),
    "conv2d-depthwise": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)), IMAGE),
    "conv2d-pointwise": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 1, 2)), IMAGE),
    "conv2d-factors": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, (1, 3), (1, 2), (0, 1)), nn.Conv2d(6, 6, (3, 1), (2, 1), (1, 0))),
        IMAGE,
    ),
    "conv2d-patches": (lambda: nn.Conv2d(3, 6, 5, 5), IMAGE),
    "conv2d-same": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding="same"), nn.Conv2d(6, 6, 5, padding="same")),
        IMAGE,
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 8, 5, 2, 1), nn.ReLU(), nn.Conv1d(8, 8, 3, groups=2)), SIGNAL),
    "conv1d-dilated": (lambda: nn.Sequential(nn.Conv1d(4, 8, 3, dilation=3), nn.Conv1d(8, 8, 1)), SIGNAL),
    "transposed2d": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 3, 2, 1, output_padding=1), nn.ReLU()), IMAGE),
    "transposed2d-grouped": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.ConvTranspose2d(6, 8, 3, groups=2, dilation=2)),
        IMAGE,
    ),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 6, 4, 2, 1), SIGNAL),
    "embedding": (lambda: Embedded(11), TOKENS),
    "embedding-padding": (lambda: Embedded(11, padding_idx=3), TOKENS),
    "embedding-large": (lambda: Embedded(700, padding_idx=3), TOKENS),
    "batch_norm2d": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU()), IMAGE),
    "batch_norm2d-plain": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, affine=False)), IMAGE),
    "batch_norm1d": (lambda: nn.Sequential(nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU()), FEATURES),
    "batch_norm1d-signal": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), SIGNAL),
    "batch_norm2d-untracked": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False)),
        IMAGE,
    ),
    "batch_norm2d-unusual": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, eps=0.1, momentum=0.7), nn.Tanh(), nn.BatchNorm2d(6, momentum=1.0)
        ),
        IMAGE,
    ),
    "batch_norm3d": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Tanh()),
        IMAGE,
    ),
    "weight_norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(12, 9)), nn.Tanh(), weight_norm(nn.Linear(9, 7), dim=1)),
        FEATURES,
    ),
    "weight_norm-whole": (lambda: weight_norm(nn.Linear(12, 9), dim=None), FEATURES),
    "weight_norm-hook": (lambda: nn.Sequential(_hooked(nn.Conv2d(3, 6, 3)), nn.ReLU()), IMAGE),
    "group_norm": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(3, 6), nn.ReLU()), IMAGE),
    "instance_norm": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU()), IMAGE),
    "layer_norm": (lambda: nn.Sequential(nn.Linear(12, 9), nn.LayerNorm(9), nn.Tanh()), FEATURES),
    "layer_norm-plain": (lambda: nn.Sequential(nn.Linear(12, 9), nn.LayerNorm(9, elementwise_affine=False)), FEATURES),
    "relu6": _activation(nn.ReLU6()),
    "leaky_relu": _activation(nn.LeakyReLU(0.1)),
    "prelu": (lambda: nn.Sequential(nn.Linear(12, 9), nn.PReLU(9)), FEATURES),
    "elu": _activation(nn.ELU()),
    "silu": _activation(nn.SiLU()),
    "hardswish": _activation(nn.Hardswish()),
    "hardsigmoid": _activation(nn.Hardsigmoid()),
    "sigmoid": _activation(nn.Sigmoid()),
    "tanh": _activation(nn.Tanh()),
    "gelu": _activation(nn.GELU()),
    "gelu-tanh": _activation(nn.GELU("tanh")),
    "softplus": _activation(nn.Softplus()),
    "mish": _activation(nn.Mish()),
    "glu": (lambda: nn.Sequential(nn.Linear(12, 10), nn.GLU()), FEATURES),
    "max_pool": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.MaxPool2d(2)), IMAGE),
    "max_pool-rest": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.MaxPool2d(3)), IMAGE),
    "max_pool-overlapping": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.MaxPool2d(3, 2, 1)), IMAGE),
    "max_pool1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.MaxPool1d(2)), SIGNAL),
    "avg_pool": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.AvgPool2d(2)), IMAGE),
    "avg_pool-overlapping": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AvgPool2d(3, 2, 1)), IMAGE),
    "avg_pool-valid": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
        IMAGE,
    ),
    "avg_pool1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.AvgPool1d(3)), SIGNAL),
    "adaptive_pool": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1)), IMAGE),
    "adaptive_pool-uneven": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d((3, 5))), IMAGE),
    "adaptive_pool1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.AdaptiveAvgPool1d(4)), SIGNAL),
    "upsample-nearest": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2)), IMAGE),
    "upsample-bilinear": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample((11, 5), mode="bilinear"), nn.Tanh()),
        IMAGE,
    ),
    "upsample-bicubic": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample((11, 12), mode="bicubic")), IMAGE),
    "upsample1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.Upsample(scale_factor=2, mode="linear")), SIGNAL),
    "unfold": (Unfolded, IMAGE),
    "bias-table": (BiasTable, SEQUENCE),
    "last-place": (lambda: nn.Sequential(nn.Linear(8, 8), LastPlace()), SEQUENCE),
    "position-table": (lambda: nn.Sequential(nn.Linear(8, 8), PositionTable()), SEQUENCE),
    "filled-table": (FilledTable, SEQUENCE),
    "pixels": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), Apply(lambda x: x[:, :, torch.tensor([0, 2, 2, -1]), torch.tensor([1, 7, 7, -2])])
        ),
        IMAGE,
    ),
    "pool-channels-last": (ChannelsLastPool, IMAGE),
    "adaptive_max_pool": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.AdaptiveMaxPool2d(5)), IMAGE),
    "pixel_shuffle": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2)), IMAGE),
    "conv3d": (lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 3, padding=1), nn.ReLU()), IMAGE),
    "moves": (Moves, IMAGE),
    "amax": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), Apply(lambda x: x.amax(2))), SIGNAL),
    "max-dim": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), Apply(lambda x: x.max(2).values)), SIGNAL),
    "mean-sum": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), Apply(lambda x: x.mean(3) + x.sum(2))), IMAGE),
    "split": (
        lambda: nn.Sequential(
            nn.Linear(12, 9), Apply(lambda x: torch.cat([p.tanh() for p in x.split([2, 3, 4], 1)], 1))
        ),
        FEATURES,
    ),
    "pad": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ZeroPad2d((1, 2, 0, 1)), nn.ReLU()), IMAGE),
    "slices": (lambda: nn.Sequential(nn.Linear(12, 9), Apply(lambda x: x[:, 1:8:2] * x[:, :4] + x[:, -1:])), FEATURES),
    "residual": (Residual, IMAGE),
    "softmax": (lambda: nn.Sequential(nn.Linear(12, 9), nn.Softmax(1)), FEATURES),
    "log_softmax": (lambda: nn.Sequential(nn.Linear(12, 9), nn.LogSoftmax(1)), FEATURES),
    "multihead_attention": (Attention, SEQUENCE),
    "scaled_attention": (lambda: ScaledAttention(False), SEQUENCE),
    "scaled_attention-causal": (lambda: ScaledAttention(True), SEQUENCE),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True),
        SEQUENCE,
    ),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2), SEQUENCE),
    "lstm-bidirectional": (lambda: Recurrent(nn.LSTM, bidirectional=True), SEQUENCE),
    "lstm-state": (Stateful, SEQUENCE),
    "lstm-cell": (CellUser, SEQUENCE),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=2), SEQUENCE),
    "rnn": (lambda: Recurrent(nn.RNN), SEQUENCE),
    "dropout-none": (lambda: nn.Sequential(nn.Linear(12, 9), nn.Dropout(0.0), nn.ReLU()), FEATURES),
}


def with_head(name: str) -> tuple[nn.Module, InputSpec]:
    """The body called ``name`` with a classifier on top, seeded, and its input."""
    build, spec = BODIES[name]
    torch.manual_seed(0)
    return Head(build(), spec), spec
