"""The training step of a causal language model over a mapped, frozen base: nodes written in the order they run in.

Nothing is traced. Every block is computed once forward and once more right before its backward pass, unless the step
begins at features that the device keeps and may keep the few blocks above them, too. Every gradient is used where it
arises, and the vocabulary goes by in chunks, so that neither logits nor all activations exist at once.
"""
