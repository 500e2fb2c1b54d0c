"""Kernels of the general schedule, compiled ahead of time for chips that are not here: all of them
compile, registers hold what they compute, and what is contiguous is loaded in vectors."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from tests.codegen.llvm.nest_cases import CASES
from tests.codegen.triton.compiling import compile_all
from tests.conftest import share
from tests.core.test_access import nest_of
from tests.gpu_kernels import BLOCK_SIZES

from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import TARGETS, Compiled
from ftuner.core.access import Kernel, kernel_of
from ftuner.core.dim import symbol
from ftuner.core.dtype import GPU_DTYPES, TENSOR_DTYPES
from ftuner.core.functions import FLOATS, SCALAR_FUNCTIONS
from ftuner.core.gpu.schedule import Schedule, schedules_of, splits
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import contiguous
from ftuner.schedules.nest.gpu_kernel import nest_kernel

B, S, T = symbol("B"), symbol("S"), symbol("T")


def kernel(op: str, *types: tuple[str, tuple[Any, ...]], **attributes: Any) -> Kernel:
    dtypes = TENSOR_DTYPES | GPU_DTYPES
    nest, results = nest_of(op, *(TensorType(dtypes[d], s) for d, s in types), **attributes)
    return kernel_of(nest, contiguous(results))


class Expected(NamedTuple):
    """A kernel, how many of its loads and stores are of 16 bytes at least, and how many registers
    a thread has at most."""

    kernel: Kernel
    vectors: int
    registers: int
    even: bool = False


HALF = "bfloat16"
HIDDEN = (B, S, 768)
KERNELS = {
    "add": Expected(kernel("add", (HALF, HIDDEN), (HALF, HIDDEN)), 3, 40),
    "add of any number": Expected(kernel("add", ("float32", (B, S)), ("float32", (B, S))), 6, 48),
    "add a row": Expected(kernel("add", (HALF, HIDDEN), (HALF, (768,))), 2, 48),
    "gelu": Expected(kernel("gelu", (HALF, (B, S, 3072))), 2, 64),
    "softmax": Expected(kernel("softmax", (HALF, (B, S, 768)), axis=2, log=False), 2, 64),
    "softmax of an even row": Expected(
        kernel("softmax", ("float32", (B, S)), axis=1, log=False), 8, 128, even=True),
    "norm": Expected(
        kernel("norm", (HALF, HIDDEN), (HALF, (768,)), (HALF, (768,)), axis=2, epsilon=1e-5,
               rms=False), 4, 64),
    "sum over rows": Expected(kernel("reduce", (HALF, HIDDEN), kind="sum", axes=(1,)), 1, 64),
    "product": Expected(kernel("reduce", (HALF, HIDDEN), kind="product", axes=(2,)), 1, 64),
    "argmax": Expected(
        kernel("arg_reduce", ("float32", (B, 32000)), kind="argmax", axis=1, last=False), 2, 96),
    "scan": Expected(
        kernel("cumulative_sum", ("int64", (B, S)), axis=1, exclusive=True, reverse=False), 0, 128),
    "transpose": Expected(kernel("transpose", (HALF, (B, S, 12, 64)), perm=(0, 2, 1, 3)), 2, 48),
    "gather": Expected(kernel("gather", (HALF, (30522, 384)), ("int64", (B, S)), axis=0), 2, 64),
    "scatter": Expected(
        kernel("scatter_elements", ("float32", (B, S)), ("int64", (T, S)), ("float32", (T, S)),
               axis=0, kind="add"), 0, 64),
    "power": Expected(kernel("power", ("float32", HIDDEN), ("float32", (768,))), 4, 96),
}  # fmt: skip
NEGLIGIBLE = 16
"""Bytes: functions of the vendor's library keep as many in memory."""
VECTOR = re.compile(r"\b(?:ld|st)\.global[.\w:]*\.v4\.b32")


COMPILED = [
    (name, chip)
    for number, name in enumerate(KERNELS)
    for chip in ("sm_90", *share(("sm_80", "sm_100", "gfx942"), 3, number))
]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], tuple[Source, Compiled]]:
    sources = {name: nest_kernel(e.kernel, even=e.even).source for name, e in KERNELS.items()}
    results = compile_all([(sources[name], TARGETS[chip]) for name, chip in COMPILED])
    return {k: (sources[k[0]], result) for k, result in zip(COMPILED, results, strict=True)}


@pytest.mark.parametrize(("name", "chip"), COMPILED)
def test_registers_hold_all_values(
    name: str, chip: str, found: dict[tuple[str, str], tuple[Source, Compiled]]
) -> None:
    source, result = found[name, chip]
    assert result.error == ""
    assert result.resources is not None
    assert result.resources.spilled_bytes == 0
    assert result.resources.threads == source.warps * TARGETS[chip].warp_threads
    assert result.resources.registers <= KERNELS[name].registers


@pytest.mark.parametrize("name", [name for name, e in KERNELS.items() if e.vectors])
def test_what_is_contiguous_moves_in_vectors(
    name: str, found: dict[tuple[str, str], tuple[Source, Compiled]]
) -> None:
    _, result = found[name, "sm_90"]
    assert len(VECTOR.findall(result.assembly)) >= KERNELS[name].vectors


def assert_compiled(kernels: Sequence[tuple[Kernel, Schedule]]) -> None:
    sources = [nest_kernel(kernel, schedule).source for kernel, schedule in kernels]
    results = compile_all([(source, TARGETS["sm_90"]) for source in sources])
    for source, result in zip(sources, results, strict=True):
        assert result.error == "", source.text
        assert result.resources is not None
        assert result.resources.spilled_bytes <= NEGLIGIBLE, source.text


def test_all_schedules_compile() -> None:
    """Those among which extents of run time choose, and blocks of several axes each way."""
    kernels = [KERNELS[name].kernel for name in ("softmax of an even row", "power", "scan")]
    kernels.append(kernel("where", ("bool", (B, 1, S)), (HALF, (B, S, S)), (HALF, ())))
    kernels.append(kernel("reduce", (HALF, (B, S, T, S)), kind="maximum", axes=(1, 3)))
    for dtype in ("float32", "float64"):
        kernels += [kernel("reduce", (dtype, (B, S)), kind="product", axes=(a,)) for a in (0, 1)]
    kernels.append(kernel("reduce", (HALF, (B, S)), kind="sum", axes=(1,)))
    schedules = [(k, schedule) for k in kernels for schedule in schedules_of(k, BLOCK_SIZES)]
    split = [(k, replace(schedule, split=True)) for k, schedule in schedules if splits(k, schedule)]
    assert split
    assert_compiled([*schedules, *split])


def test_operators_compile() -> None:
    """On the last of their dtypes, which is an integer's where they take any. Functions of floats
    alone are compiled elsewhere."""
    scalar = {name for name, function in SCALAR_FUNCTIONS.items() if function.kinds <= FLOATS}
    kernels = [cases[-1].kernel() for op, cases in CASES.items() if op not in scalar]
    assert_compiled([(k, schedules_of(k, BLOCK_SIZES)[-1]) for k in kernels])


def test_bits_compile() -> None:
    """Of dtypes that registers hold otherwise than memory."""
    dtypes = TENSOR_DTYPES | GPU_DTYPES
    pairs = (
        ("float16", "int16"), ("uint16", "bfloat16"), ("bfloat16", "float16"), ("bool", "int8"),
        ("uint8", "bool"), ("float64", "uint64"),
    )  # fmt: skip
    kernels = [kernel("bit_cast", (of, (B, S)), of=dtypes[of], to=dtypes[to]) for of, to in pairs]
    assert_compiled([(k, schedules_of(k, BLOCK_SIZES)[-1]) for k in kernels])
