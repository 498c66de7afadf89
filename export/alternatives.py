"""What to use in place of operations that no training step exists for: the advice of every format's refusals."""

from __future__ import annotations

SUPPORTED = "convolution, linear, norm, pooling, activation, attention or recurrent layers"
"""For operations that nobody asked about yet."""

_INSTEAD = {
    "_cdist": "sums of squared differences",
    "_embedding_bag": "Embedding and a mean",
    "_fft": "a convolution, or a product with a fixed matrix",
    "_local_scalar_dense": "the tensor itself in place of its .item()",
    "_unsafe_index": "ConvTranspose2d to enlarge, zeros to pad",
    "_unsafe_masked_index": "ConvTranspose2d to enlarge, zeros to pad",
    "_weight_norm_interface": "the layer without weight norm",
    "adaptive_max_pool": "MaxPool2d, or an output size that divides the input",
    "avg_pool3d": "AvgPool2d, and BatchNorm2d or GroupNorm in place of LocalResponseNorm",
    "col2im": "ConvTranspose2d",
    "cumprod": "cumsum of logarithms",
    "eye": "a buffer that holds the matrix",
    "fractional_max_pool": "MaxPool2d",
    "grid_sampler": "slices at fixed positions, or strided convolutions",
    "im2col": "a convolution",
    "kthvalue": "amax or a softmax",
    "linalg": "matrix products and norm layers",
    "max_pool3d": "Conv3d with a stride, or MaxPool2d",
    "max_unpool": "ConvTranspose2d",
    "median": "mean, amax or a softmax",
    "nan_to_num": "torch.where",
    "new_empty_strided": "zeros to pad, or torch.cat of slices",
    "reflection_pad": "zeros to pad",
    "replication_pad": "zeros to pad",
    "sort": "amax or a softmax",
    "topk": "amax or a softmax",
    "upsample": "ConvTranspose2d",
}
"""Operation, or what its name starts with -> what to use."""


def alternative(operation: str) -> str:
    """What to use in place of ``operation``, an ATen name with or without namespace and overload; its backward too."""
    name = operation.rpartition("::")[2].removeprefix("aten.").partition(".")[0]
    for start in sorted(_INSTEAD, key=len, reverse=True):
        if name.startswith(start):
            return _INSTEAD[start]
    return SUPPORTED
