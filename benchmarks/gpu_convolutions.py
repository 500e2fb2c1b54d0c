"""Convolutions on a GPU, with a bias and relu, against cuDNN by eager PyTorch: the layers of
`workloads/operators.json`, channels last in all engines."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_bench import (
    CONFIDENCE,
    INPUT_ROUNDOFF,
    MAIN,
    SUBJECT,
    TORCH_TYPES,
    VENDOR,
    Attempt,
    Bench,
    attempts,
    finite,
    multiplying,
    ordered,
)
from benchmarks.gpu_cases import ITEMSIZE
from benchmarks.gpu_timing import Call
from benchmarks.vision.convolutions import KINDS, Convolution, Layer, cases
from ftuner.core.expr import ACCUMULATOR, Operand, relu
from ftuner.core.gpu.schedule import DepthwiseKernel, depthwise_block
from ftuner.core.product import ReadWindow
from ftuner.runtime.gpu.arrays import Tensor, matrix_dtype
from ftuner.runtime.gpu.kernels import BoundKernel
from ftuner.runtime.gpu.operands import Product, bound_window, matrix_of
from ftuner.schedules.depthwise.gpu_kernel import EVEN, depthwise_source
from ftuner.schedules.depthwise.step import FEW_OF_GROUP

BATCHES = {MAIN: (1, 16), "tf32": (1,)}
"""Images of a call, by what is multiplied."""
EPILOGUE = relu(ACCUMULATOR + Operand("bias", "column"))


@dataclass(frozen=True)
class Case:
    """A layer on images of one size."""

    set: str
    multiply: str
    batch: int
    convolution: Convolution

    @property
    def label(self) -> str:
        return f"{self.set} {self.multiply} {self.batch} of {self.convolution.label}"

    @property
    def flops(self) -> int:
        return self.batch * self.convolution.flops

    @property
    def bytes(self) -> int:
        """Of the input, the weight and the result."""
        layer, given = self.convolution.layer, self.convolution.given
        elements = math.prod(given) * layer.cin + math.prod(layer.extents(given)) * layer.cout
        whole = self.batch * elements + math.prod(layer.weight_shape)
        return whole * ITEMSIZE[self.multiply]


def all_cases() -> Iterator[Case]:
    """Layers without those that are products of another kind (transposed ones)."""
    for kind in KINDS:
        for convolution in cases(kind):
            if not convolution.layer.transposed:
                for multiply, batches in BATCHES.items():
                    yield from (Case(kind, multiply, batch, convolution) for batch in batches)


def dry_cases() -> Iterator[Case]:
    """Tiny ones of each engine of ours."""
    plain = Layer((3, 3), 1, 1, 8, 16)
    layers = (
        plain, Layer((1, 1), 1, 0, 8, 16), replace(plain, groups=8, cout=8),
        Layer((3,), 2, 1, 6, 5), Layer((3, 3), 1, 1, 32, 32, groups=2),
    )  # fmt: skip
    for layer in layers:
        yield Case("dry", "float32", 2, Convolution(layer, (5,) * layer.rank))


class Operands:
    """Copies of the operands of a layer, and calls of engines on them."""

    def __init__(self, bench: Bench, case: Case) -> None:
        layer, given = case.convolution.layer, case.convolution.given
        self._bench, self.case, self.layer = bench, case, layer
        self.count = bench.rotated(case)
        self.positions = layer.extents(given)
        self.x = bench.copies(self.count, (case.batch, *given, layer.cin), case.multiply)
        shape = (case.batch, *self.positions, layer.cout)
        self.y = bench.copies(self.count, shape, case.multiply)
        rng = np.random.default_rng(0)
        weight, bias = (torch.from_numpy(x).to(bench.device) for x in layer.parameters(rng))
        self.weight, self.bias = (x.to(TORCH_TYPES[case.multiply]) for x in (weight, bias))

    def ours(self) -> list[Call]:
        own = self.layer.cin // self.layer.groups
        if self.layer.groups > 1 and own in FEW_OF_GROUP and self.layer.rank <= 2:
            run = self._depthwise(own)
        else:
            run = self._product()
        return [lambda x=x, y=y: run(x, y) for x, y in zip(self.x, self.y, strict=True)]

    def _product(self) -> Callable[[Tensor, Tensor], Tensor]:
        """As a product, through a window unless one element of x is enough."""
        products, layer, rank = self._bench.backend.products, self.layer, self.layer.rank
        groups, own = layer.groups, layer.cin // layer.groups
        # (groups, k, columns), contiguous along k.
        b = self.weight.movedim(1, -1).reshape(groups, layer.cout // groups, -1).mT
        strides, dilations = (layer.stride,) * rank, (layer.dilation,) * rank
        launches: dict[int, Sequence[BoundKernel] | None] = {}

        def run(x: Tensor, y: Tensor) -> Tensor:
            """A step of a model keeps its launches, too."""
            kept = launches.get(y.data_ptr())
            if kept is None:
                launches[y.data_ptr()] = launched(x, y)
            for bound in kept or ():
                bound.launch()
            return y

        def launched(x: Tensor, y: Tensor) -> Sequence[BoundKernel] | None:
            rows, given = y.view(-1, groups, layer.cout // groups).transpose(0, 1), {}
            given = {"bias": self.bias}
            if set(layer.kernel) == {1} and layer.stride == groups == 1 and not layer.pad:
                flat = x.view(-1, layer.cin)
                return products.launch(Product(flat, b[0], rows[0], EPILOGUE, given))
            window = bound_window(
                x, ReadWindow(rank, own, math.prod(layer.kernel) / layer.stride**rank),
                layer.kernel, strides, dilations, (layer.pad,) * rank, self.positions,
            )  # fmt: skip
            a = matrix_of(x, groups, own)
            return products.launch(Product(a, b, rows, EPILOGUE, given, window=window))

        return run

    def _depthwise(self, group: int) -> Callable[[Tensor, Tensor], Tensor]:
        layer, backend = self.layer, self._bench.backend
        dtype = matrix_dtype(self.weight, "weight")
        elements = backend.hardware.tuning.block_sizes.block_elements
        kernel = DepthwiseKernel(
            dtype, dtype, dtype, (dtype,), None, _of_two(layer.kernel, 1), (layer.stride,) * 2,
            (layer.dilation,) * 2, EPILOGUE, group, depthwise_block(layer.cin, elements),
            layer.cin % EVEN == 0,
        )  # fmt: skip
        launch = backend.kernels.kernel(depthwise_source(kernel))
        weight = self.weight.movedim(0, -1).movedim(0, -2).contiguous()
        height, width = _of_two(self.case.convolution.given, 1)
        out_height, out_width = _of_two(self.positions, 1)
        begin = _of_two((layer.pad,) * layer.rank, 0)
        channels, rows = layer.cin, self.case.batch * out_height * out_width
        tiles = -(-rows // kernel.block[0]) * -(-channels // kernel.block[1])
        numbers = (
            self.case.batch, height, width, channels, out_height, out_width, *begin,
            0, height * width * channels, width * channels, channels,
            0, out_height * out_width * channels, out_width * channels, channels, 0, 0,
        )  # fmt: skip

        def run(x: Tensor, y: Tensor) -> Tensor:
            launch(tiles, x, weight, self.bias, y, *numbers)
            return y

        return run

    def vendor(self) -> list[Call]:
        return [lambda x=x: self._eager(x, self.weight, self.bias).relu_() for x in self.x]

    def _eager(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Without relu, channels last."""
        layer, rank = self.layer, self.layer.rank
        steps = {"stride": (layer.stride,) * rank, "dilation": (layer.dilation,) * rank}
        functions = (torch.nn.functional.conv1d, torch.nn.functional.conv2d)
        last = {"memory_format": torch.channels_last} if rank == 2 else {}
        y: Tensor = functions[rank - 1](
            x.movedim(-1, 1), weight.contiguous(**last), bias, padding=layer.pad,
            groups=layer.groups, **steps,
        )  # fmt: skip
        return y.movedim(1, -1)

    def error(self, call: Callable[[], Any], number: int) -> float:
        """The largest error of a call on the operands of this number over what rounding explains,
        from the first image, in float64; above one it is wrong."""
        y, x = call()[:1].double(), self.x[number][:1].double()
        weight, bias = self.weight.double(), self.bias.double()
        sums = self._eager(x, weight, None)
        scale = self._eager(x * x, weight * weight, None).clamp_min(0).sqrt() + sums.abs()
        k = math.prod(self.layer.weight_shape[1:])
        out, single = (torch.finfo(t).eps for t in (self.y[0].dtype, torch.float32))
        roundoff = INPUT_ROUNDOFF[self.case.multiply] + math.sqrt(k) * single
        bound = (2.0 * out + CONFIDENCE * roundoff) * (scale + bias.abs())
        return finite(((y - (sums + bias).relu()).abs() / bound.clamp_min(1e-30)).max())


def _of_two(values: tuple[int, ...], missing: int) -> tuple[int, int]:
    first, second = (missing, *values)[-2:]
    return first, second


def run_case(bench: Bench, case: Case) -> dict[str, Any]:
    """Check and time one layer; the result as JSON. cuDNN may try its algorithms first."""
    tf32 = case.multiply == "tf32"
    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=tf32)
    with multiplying(case.multiply), torch.inference_mode(), cudnn:
        operands = Operands(bench, case)
        calls = {SUBJECT: operands.ours(), VENDOR: operands.vendor()}
        return bench.result(case, operands, calls, asdict(case))


def convolutions(bench: Bench) -> Iterator[Attempt]:
    """Layers of networks on images and sequences."""
    return attempts(bench, dry_cases() if bench.dry else ordered(all_cases()), run_case)
