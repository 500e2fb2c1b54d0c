"""Windows of single channels on a GPU: depthwise convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftuner.codegen.triton.source import Source
from ftuner.core.dtype import GPU_DTYPES, DType
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.schedule import DepthwiseKernel, depthwise_block
from ftuner.core.gpu.tile import MOST_COUNTED
from ftuner.errors import ShapeError
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.kernels import Kernels
from ftuner.runtime.gpu.operands import expect_within_reach
from ftuner.runtime.gpu.program import Launch
from ftuner.runtime.gpu.step_kind import (
    MAX_LAUNCHED,
    CompiledStep,
    Places,
    Setting,
    StepKind,
    TiledLaunch,
)
from ftuner.schedules.depthwise.gpu_kernel import DIMS, EVEN, EVEN_DIMS, depthwise_source
from ftuner.schedules.depthwise.step import DepthwiseStep


@dataclass(frozen=True)
class CompiledDepthwise(CompiledStep):
    """Windows of single channels, whose dims have numbers."""

    step: DepthwiseStep
    kernel: DepthwiseKernel
    kernels: Kernels
    images: int
    """The number of the dim of images."""
    parameters: tuple[int, ...]
    """The numbers of the dims of `DepthwiseStep.parameters`."""
    sources: Sequence[Source]
    """The kernel for any numbers, and that for even ones."""

    def bind(self, values: Sequence[int], memory: Places, status: Tensor | None) -> Launch | None:
        images, numbers = values[self.images], [values[n] for n in self.parameters]
        found = dict(zip(DIMS, numbers, strict=False))
        step, rows = self.step, images * found["out_height"] * found["out_width"]
        if rows * found["channels"] <= 0:
            return None
        if max(rows, found["channels"]) > MOST_COUNTED:
            raise ShapeError(
                f"windows at {rows} positions of {found['channels']} channels; at most "
                f"{MOST_COUNTED} of each are possible"
            )
        for axis, (extent, out, begin) in enumerate(
            (("height", "out_height", "begin_y"), ("width", "out_width", "begin_x"))
        ):
            expect_within_reach(
                found[extent], found[out], step.window[axis], step.strides[axis],
                step.dilations[axis], found[begin],
            )  # fmt: skip
        even = [n for name, n in found.items() if name in EVEN_DIMS] + numbers[len(DIMS) :]
        source = self.sources[all(n % EVEN == 0 for n in even)]
        positions, channels = self.kernel.block
        tiles = -(-rows // positions) * -(-found["channels"] // channels)
        return TiledLaunch(
            self.kernels.kernel(source), min(tiles, MAX_LAUNCHED),
            [memory(buffer) for buffer in (*step.reads, *step.writes)], [images, *numbers],
        )  # fmt: skip


class DepthwiseKind(StepKind[DepthwiseStep]):
    """Windows of single channels are one kernel, whose tiles are positions by channels."""

    def supports(self, dtype: DType) -> bool:
        return dtype.name in GPU_DTYPES

    def compiled(self, step: DepthwiseStep, setting: Setting) -> CompiledDepthwise:
        session, dims = setting.session, setting.dims
        kernel = _kernel(step, session.hardware.tuning.block_sizes.block_elements)
        sources = [depthwise_source(replace(kernel, even=even)) for even in (False, True)]
        return CompiledDepthwise(
            step, kernel, session.kernels, dims.number(step.x.shape[0]),
            dims.numbers(step.parameters()), sources,
        )  # fmt: skip


def _kernel(step: DepthwiseStep, elements: int) -> DepthwiseKernel:
    # What is beyond what kernels count is never added: there is one window, or one element.
    strides, dilations = (
        tuple(n if n <= MOST_COUNTED else 0 for n in values)
        for values in (step.strides, step.dilations)
    )
    weight = None if step.weight is None else step.weight.layout.dtype
    return DepthwiseKernel(
        step.x.layout.dtype, weight, step.out.layout.dtype,
        tuple(view.layout.dtype for view in step.operands), step.reduction, step.window,
        (strides[0], strides[1]), (dilations[0], dilations[1]), step.epilogue, step.group,
        depthwise_block(step.x.shape[-1], elements),
    )  # fmt: skip


KIND = DepthwiseKind()
