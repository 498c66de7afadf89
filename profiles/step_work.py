"""What a training step computes, by the kind of kernel that computes it: the work that a device's step times follow.

Measured on two runtimes: convolutions and products run at different rates, and a convolution of few
channels takes nearly as long as one with the next multiple of 16, which kernels are made for; tiles make
fewer products.
"""

from __future__ import annotations

import msgspec

from profiles.bounds import Count


class StepWork(msgspec.Struct, frozen=True):
    """Multiply-accumulates of one whole step of a batch: forward, backward, and what a penalty takes.

    Attributes:
        convolution_macs: of convolutions.
        padded_macs: theirs with channels rounded up to multiples of 16, and 16 for each 36 where a runtime does 3 x 3
            convolutions in tiles; of those without groups alone.
        matrix_macs: of matrix products and recurrent layers.
    """

    convolution_macs: Count
    padded_macs: Count
    matrix_macs: Count
