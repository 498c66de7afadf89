"""Two-layer LSTMs over symbols: the next character of LEAF's Shakespeare task, and the label of a review."""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError


class NextCharacter(nn.Module):
    """Embedding, LSTM, classifier on the last step; int64 [batch, length] -> [batch, classes].

    A class is the next character, or the label of a text.
    """

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
    """2 x 128 units over 90 symbols unless given otherwise, LEAF's; works for any length.

    Raises:
        ConfigError: an input that is not one dimension of symbols.
    """
    if len(input_shape) != 1:
        raise ConfigError([f"$.model.input: {list(input_shape)} given, lstm needs [length]"])
    return NextCharacter(symbols, embedding, hidden, layers, classes)


def review_lstm(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """1,001 words, embedding 64, 2 x 256 units; two logits where its source has one under a sigmoid.

    Source: PriSM's code for IMDB.

    Raises:
        ConfigError: as :func:`lstm`.
    """
    return lstm(input_shape=input_shape, classes=classes, symbols=1001, embedding=64, hidden=256)
