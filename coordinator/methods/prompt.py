"""Visual prompts: a frozen transformer in which tokens beside the image's, and the classifier, are trained.

Source: Jia et al., "Visual prompt tuning", deep and shallow; FedHM, journal version, for its use as a baseline of
FedLoRA with prompts of 16, 32, 64 and 128 tokens.
"""

from __future__ import annotations

from coordinator.config.method_options import Options
from coordinator.methods.additions import AdditionMethod
from coordinator.submodels.frozen_base import transformer_blocks
from coordinator.submodels.record import Added, LayerCut
from edge.contracts.errors import ConfigError

DEPTHS = ("deep", "shallow")


class Prompt(AdditionMethod):
    """Options, in kebab case, beside those of every such method:

    - ``levels``: one number, the tokens of a prompt; 16.
    - ``depth``: ``deep``, new tokens for every block, or ``shallow``, tokens that go through all of them; deep.
    - ``layout``: name patterns of the blocks that get a deep prompt; all of them.

    A prompt of L tokens has L W parameters, and every block works on L tokens more. The model's function changes with
    the first values already: attention is shared with the prompt.
    """

    name = "prompt"
    default_size = 16
    unit = "tokens"

    def read_own(self, read: Options) -> None:
        """``depth`` and ``layout``."""
        self._depth = read.choice("depth", DEPTHS, "deep")
        self._patterns = read.names("layout")

    def additions(self, head: str, size: int) -> dict[str, LayerCut]:
        """Tokens before every block, or before the sequence of all of them."""
        record = LayerCut(added=Added("prompt", length=size))
        blocks = transformer_blocks(self.module, self.name, self._patterns)
        if self._depth == "deep":
            return {block: record for block in blocks}
        if self._patterns is not None:
            raise ConfigError(
                [f"$.method.layout: {list(self._patterns)} given, a shallow prompt goes through all blocks"]
            )
        return {blocks[0].rpartition(".")[0]: record}
