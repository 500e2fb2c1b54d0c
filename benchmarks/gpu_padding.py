"""What padding to buckets costs: the usual answer to shapes that change, where kernels or graphs
are made for a few extents, and everything else is padded up to the next of them."""

from collections.abc import Callable, Mapping

import torch

from benchmarks.gpu_cases import LLAMA, Product

PADDED = "torch, padded to "
"""Before the name of the buckets, in names of engines."""
BUCKETS: Mapping[str, Callable[[int], int]] = {
    "powers of two": lambda extent: 1 << (extent - 1).bit_length(),
    "multiples of 64": lambda extent: -(-extent // 64) * 64,
}
"""The extent that one of at least 1 is padded to."""
SETS = (LLAMA, "dietcode", "dry")
"""Sets of products that are padded as well: layers of models of dynamic length."""
MULTIPLIES = ("bfloat16", "float16")

Feeds = Mapping[str, torch.Tensor]


def padded_rows(case: Product) -> dict[str, int]:
    """Engines of a product, and the rows that each pads it to; none where nothing would be padded,
    or for products that are no layers."""
    if case.batch or case.set not in SETS or case.multiply not in MULTIPLIES:
        return {}
    rows = {PADDED + name: bucket(case.m) for name, bucket in BUCKETS.items()}
    return {name: count for name, count in rows.items() if count != case.m}


def padded_lengths(length: int, most: int) -> dict[str, int]:
    """The same for a model, whose positions end at `most`."""
    lengths = {PADDED + name: min(bucket(length), most) for name, bucket in BUCKETS.items()}
    return {name: count for name, count in lengths.items() if count != length}


def padded(feeds: Feeds, length: int) -> dict[str, torch.Tensor]:
    """The inputs of a model, of batch and length, with zeros up to a length: positions that a mask,
    or the order of positions, hides from all others."""
    return {
        name: torch.nn.functional.pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.shape[1]))
        for name, x in feeds.items()
    }


def trimmed(y: torch.Tensor, length: int) -> torch.Tensor:
    """An output without what was padded: a view, of three axes; pooled outputs are as they were."""
    return y[:, :length] if y.dim() == 3 else y
