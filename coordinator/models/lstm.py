"""A two-layer LSTM that predicts the next character. Source: LEAF's Shakespeare task (embedding 8, length 80)."""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError


class NextCharacter(nn.Module):
    """Embedding, LSTM, classifier on the last step; int64 [batch, length] -> [batch, classes]."""

    def __init__(self, symbols: int, embedding: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.lstm(self.embedding(x))
        return self.fc(steps[:, -1])


def lstm(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    symbols: int = 90,
    embedding: int = 8,
    hidden: int = 128,
    layers: int = 2,
) -> nn.Module:
    """2 x 128 units over 90 symbols unless given otherwise; works for any length.

    Raises:
        ConfigError: an input that is not one dimension of symbols.
    """
    if len(input_shape) != 1:
        raise ConfigError([f"$.model.input: {list(input_shape)} given, lstm needs [length]"])
    return NextCharacter(symbols, embedding, hidden, layers, classes)
