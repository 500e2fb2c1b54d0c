"""Kernels of nests on floats of two bytes, which are computed in float32."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.codegen.llvm.nest_cases import CASES
from tests.codegen.llvm.nest_running import A, Array, B, Bindings, Case, extreme, values
from tests.codegen.triton.nest_launching import FEW, buffer, chosen, is_slow, launch, small

from ftuner.core.access import kernel_of
from ftuner.core.cpu.schedule import operand_numbers
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, GPU_DTYPES, INT64, TENSOR_DTYPES, DType
from ftuner.core.evaluation import evaluate
from ftuner.core.index_expr import Nest, Operand, Store, Writer
from ftuner.graph.ir import TensorType
from ftuner.graph.operators import OPERATORS
from ftuner.schedules.nest.gpu_kernel import nest_kernel


class HalfCase(Case):
    """A case on float16 or bfloat16; arrays of the latter are float32 that it holds exactly."""

    @property
    def types(self) -> Any:
        return tuple(TensorType((TENSOR_DTYPES | GPU_DTYPES)[d], s) for d, s in self.operands)

    def arrays(self, bindings: Bindings, seed: int) -> list[Array]:
        held = tuple(("float32" if d == "bfloat16" else d, s) for d, s in self.operands)
        found = Case(self.op, held, makes=self.makes).arrays(bindings, seed)
        cut = [d == "bfloat16" for d, _ in self.operands]
        return [_cut(x) if c else x for x, c in zip(found, cut, strict=True)]


def _cut(x: Array) -> Array:
    """float32 with the significand of bfloat16."""
    return np.asarray(x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _halved(op: str, half: str) -> HalfCase | None:
    """The first case of an operator on float32, on a half instead."""
    for case in CASES[op]:
        dtypes = [d for d, _ in case.operands]
        if "float32" in dtypes and "float64" not in dtypes and op not in ("cast", "bit_cast"):
            operands = tuple((half if d == "float32" else d, s) for d, s in case.operands)
            makes = tuple(values if make is extreme else make for make in case.makes)
            return HalfCase(op, operands, case.attributes, makes, case.roundings, case.size)
    return None


def _tensor(array: Array, dtype: str) -> torch.Tensor:
    return buffer(array).to(torch.bfloat16) if dtype == "bfloat16" else buffer(array)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", [op for op in CASES if _halved(op, "float16")])
def test_halves_are_computed_in_float32(op: str, half: DType) -> None:
    """Results are rounded once, when they are stored: cut, for bfloat16 in the interpreter."""
    case = _halved(op, half.name)
    assert case is not None
    kernel = case.kernel()
    (result,) = case.results()
    blocks_are_small = half == FLOAT16 or is_slow(case)
    bindings = FEW[0] if blocks_are_small else case.extents[0]
    schedule = small(kernel) if blocks_are_small else chosen(kernel, bindings)
    arrays = case.arrays(bindings, 5)
    tensors = [_tensor(x, d) for x, (d, _) in zip(arrays, case.operands, strict=True)]
    shape = tuple(evaluate(n, bindings) for n in result.shape)
    stored = {BOOL: torch.uint8, INT64: torch.int64, half: getattr(torch, half.name)}
    out = torch.empty(shape, dtype=stored[result.dtype])
    assert launch(nest_kernel(kernel, schedule), tensors, [out], bindings) == 0
    _assert_near(case, half, out, arrays, bindings)


def _assert_near(
    case: Case, half: DType, out: torch.Tensor, arrays: list[Array], bindings: Bindings
) -> None:
    attributes = case.bound(bindings)
    floats = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in arrays]
    with np.errstate(all="ignore"):
        wide = np.asarray(OPERATORS[case.op].reference(*floats, **attributes))
        size = np.abs(wide) if case.size is None else np.abs(case.size(*floats, **attributes))
    if out.dtype in (torch.uint8, torch.int64):
        assert np.array_equal(out.numpy(), wide.astype(np.int64)), case
        return
    found, rounded = out.double().numpy(), torch.tensor(wide).to(out.dtype).double().numpy()
    finite = np.isfinite(rounded)
    assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True), case
    allowed = 2 * half.unit_roundoff * np.abs(wide) + case.roundings * 2.0**-24 * size + 2.0**-24
    with np.errstate(invalid="ignore"):
        assert np.all((np.abs(found - wide) <= allowed)[finite]), case


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "int8", "uint64", "bool"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float64", "int32", "bool"])
def test_casts_of_halves(source: str, target: str) -> None:
    """Also within an expression, where the register stays float32: what is cast is rounded."""
    x = np.array([0, 1, 2.5, 100, 63.75, 3.999, 0.1] * 3)
    if source in ("int32", "bool"):
        x = x.astype(source).astype(np.float64)
    given = torch.tensor(x).to(getattr(torch, source))
    types = (TENSOR_DTYPES | GPU_DTYPES)[source], (TENSOR_DTYPES | GPU_DTYPES)[target]
    writer = Writer()
    value = writer.cast(writer.step("load", types[0], writer.index(0), payload=0), types[1])
    wide = writer.cast(value, TENSOR_DTYPES["float64"])
    shape = (len(x),)
    operands = (Operand(types[0], shape, (1,)),)
    nest = Nest(shape, (), operands, tuple(writer.steps), (), (Store(wide, (0,)),))
    out = torch.empty(shape, dtype=torch.float64)
    kernel = nest_kernel(kernel_of(nest, [Operand(TENSOR_DTYPES["float64"], shape, (1,))]))
    launch(kernel, [given.view(torch.uint8) if source == "bool" else given], [out], {})
    expected = given.to(getattr(torch, target)).double()
    roundoff = types[1].unit_roundoff if types[1].kind == "float" else 0.0
    assert torch.all((out - expected).abs() <= 2 * roundoff * expected.abs())
    # Nothing is left of what the format does not hold.
    assert torch.equal(out, out.to(getattr(torch, target)).double())


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("other", ["int16", "uint16", "bfloat16", "float16"])
def test_bits_of_halves(half: str, other: str) -> None:
    """Those that memory has, though registers hold float32; there and back, in two kernels and
    within one. The interpreter makes zeros of numbers below the normal ones of bfloat16."""
    bits = np.array([0, 0x0080, 0x3C00, 0x3F80, 0x4248, 0x8000, 0xC0A0, 0x7F7F], np.uint16)
    given = torch.from_numpy(bits.view(np.int16)).view(getattr(torch, half))
    types = [(TENSOR_DTYPES | GPU_DTYPES)[name] for name in (half, other)]
    for chain in (types, types[::-1], [*types, types[0]]):
        writer = Writer()
        value = writer.step("load", chain[0], writer.index(0), payload=0)
        for to in chain[1:]:
            value = writer.step("bit_cast", to, value)
        operand = Operand(chain[0], bits.shape, (1,))
        nest = Nest(bits.shape, (), (operand,), tuple(writer.steps), (), (Store(value, (0,)),))
        out = torch.empty(bits.shape, dtype=getattr(torch, chain[-1].name))
        kernel = nest_kernel(kernel_of(nest, [Operand(chain[-1], bits.shape, (1,))]))
        launch(kernel, [given.view(getattr(torch, chain[0].name))], [out], {})
        assert np.array_equal(out.view(torch.int16).numpy().view(np.uint16), bits), chain


def test_arguments() -> None:
    case = Case("gather", (("bfloat16", (A, 48)), ("int32", (B,))), {"axis": 0, "node": "embed"})
    made = nest_kernel(HalfCase(case.op, case.operands, case.attributes).kernel())
    assert made.checks == ("embed",)
    assert made.parameters == (B, A)
    assert operand_numbers(made.kernel) == [0, 1]
    assert len(made.kernel.values) == 1
    assert [(a.type, a.divisor) for a in made.source.arguments] == [
        ("*bf16", 16), ("*i32", 16), ("*bf16", 16), ("*i32", 1), ("i64", 1), ("i64", 1)
    ]  # fmt: skip
    apart = nest_kernel(made.kernel, made.schedule, aligned=False)
    assert [a.divisor for a in apart.source.arguments] == [1] * 6
    assert apart.source.key != made.source.key
