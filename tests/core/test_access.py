"""Kernels read and write the addresses that their definitions say, however axes are merged."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product as every
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftuner.core.access import Access, Kernel, kernel_of
from ftuner.core.dim import Dim, quotient, row_major_strides, symbol
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, INT64
from ftuner.core.evaluation import evaluate
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.index_expr import Nest, Operand, Step
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import contiguous
from ftuner.graph.operators import OPERATORS

B, S, T = symbol("B"), symbol("S"), symbol("T")
Bindings = Mapping[str, int]
Visit = tuple[tuple[str, int], ...]
"""What one index touches: names of operands and results with addresses in elements."""


def nest_of(op: str, *types: TensorType, **attributes: Any) -> tuple[Nest, tuple[TensorType, ...]]:
    """The definition of an operator and the types of its results."""
    operator = OPERATORS[op]
    results = operator.infer(types, attributes, lambda *args, **kwargs: None)
    assert operator.define is not None
    return operator.define(types, attributes, results), results


def floats(*shape: Dim) -> TensorType:
    return TensorType(FLOAT32, shape)


def integers(*shape: Dim) -> TensorType:
    return TensorType(INT64, shape)


def bound(dim: Dim, bindings: Bindings) -> int:
    return evaluate(dim, bindings)


class Reader:
    """The values of steps at one index, in NumPy's arithmetic. Memory holds small numbers: what a
    program reads as indices is within any axis here."""

    def __init__(self, steps: Sequence[Step], index: Sequence[int], bindings: Bindings) -> None:
        self.steps, self.index, self.bindings = steps, index, bindings

    def address(self, number: int) -> int:
        """Of a load."""
        raise NotImplementedError

    def value(self, number: int) -> Any:
        step = self.steps[number]
        if step.op == "load":
            return 0 if step.dtype == INT64 and self.address(number) % 2 else 1
        if step.op == "stage":
            return 0
        if step.op == "index":
            assert isinstance(step.payload, int)
            return self.index[step.payload]
        if step.op == "constant":
            return step.payload
        if step.op == "dim":
            return bound(step.payload, self.bindings)  # type: ignore[arg-type]
        arguments = [self.value(a) for a in step.arguments]
        if step.op == "checked":
            return arguments[0] % arguments[1]
        if step.op == "where":
            return arguments[1] if arguments[0] else arguments[2]
        if step.op == "cast":
            return arguments[0]
        return SCALAR_FUNCTIONS[step.op].meaning(*arguments)


class NestReader(Reader):
    def __init__(self, nest: Nest, index: Sequence[int], bindings: Bindings) -> None:
        super().__init__(nest.steps, index, bindings)
        self.nest = nest

    def address(self, number: int) -> int:
        step = self.steps[number]
        assert isinstance(step.payload, int)
        operand = self.nest.operands[step.payload]
        address = bound(operand.offset, self.bindings)
        for argument, stride in zip(step.arguments, operand.strides, strict=True):
            address += int(self.value(argument)) * bound(stride, self.bindings)
        return address


class KernelReader(Reader):
    def __init__(self, kernel: Kernel, index: Sequence[int], bindings: Bindings) -> None:
        super().__init__(kernel.steps, index, bindings)
        self.kernel = kernel

    def offset(self, constant: Dim, coefficients: Sequence[Dim], rest: Any) -> int:
        address = bound(constant, self.bindings)
        for at, coefficient in zip(self.index, coefficients, strict=True):
            address += at * bound(coefficient, self.bindings)
        for step, factor in rest:
            address += int(self.value(step)) * bound(factor, self.bindings)
        return address

    def address(self, number: int) -> int:
        access = self.kernel.accesses[number]
        assert access is not None
        return self.offset(access.constant, access.coefficients, access.rest)


def indices(extents: Sequence[Dim], bindings: Bindings) -> Any:
    return every(*(range(bound(n, bindings)) for n in extents))


def live(nest: Nest) -> list[int]:
    """The steps that stages and stores need."""
    found: set[int] = set()

    def visit(number: int) -> None:
        if number not in found:
            found.add(number)
            for argument in nest.steps[number].arguments:
                visit(argument)

    for store in nest.stores:
        for number in (store.value, *store.at):
            visit(number)
    for stage in nest.stages:
        visit(stage.value)
    return sorted(found)


def visits_of_nest(nest: Nest, targets: Sequence[Operand], bindings: Bindings) -> list[Visit]:
    """By the definition: for each index of all axes, in order."""
    loads = [n for n in live(nest) if nest.steps[n].op == "load"]
    found = []
    for index in indices(nest.axes, bindings):
        reader = NestReader(nest, index, bindings)
        visit = [(f"operand {nest.steps[n].payload}", reader.address(n)) for n in loads]
        for number, (store, target) in enumerate(zip(nest.stores, targets, strict=True)):
            at = [index[a] for a in store.axes] or [int(reader.value(n)) for n in store.at]
            strides = [bound(s, bindings) for s in target.strides]
            address = sum(i * s for i, s in zip(at, strides, strict=True))
            visit.append((f"result {number}", address + bound(target.offset, bindings)))
        found.append(tuple(visit))
    return found


def visits_of_kernel(kernel: Kernel, bindings: Bindings) -> list[Visit]:
    loads = [n for n, step in enumerate(kernel.steps) if step.op == "load"]
    found = []
    for index in indices(kernel.axes, bindings):
        reader = KernelReader(kernel, index, bindings)
        visit = [(f"operand {kernel.steps[n].payload}", reader.address(n)) for n in loads]
        for number, target in enumerate(kernel.targets):
            address = reader.offset(target.constant, target.coefficients, target.rest)
            visit.append((f"result {number}", address))
        found.append(tuple(visit))
    return found


def assert_same_addresses(
    nest: Nest, targets: Sequence[Operand], bindings: Bindings | None = None
) -> Kernel:
    """Merged axes go through their indices in the order that the axes apart do."""
    bindings = bindings or {}
    kernel = kernel_of(nest, targets)
    assert visits_of_kernel(kernel, bindings) == visits_of_nest(nest, targets, bindings)
    return kernel


# Literal merges.

CONTIGUOUS: tuple[tuple[Any, Any, Any, Any], ...] = (
    # What, kept axes, reduced axes.
    (("add", floats(3, 4, 5), floats(3, 4, 5)), {}, (60,), ()),
    (("add", floats(3, 4, 5), floats(5)), {}, (12, 5), ()),
    (("add", floats(3, 4, 5), floats(3, 1, 1)), {}, (3, 20), ()),
    (("add", floats(3, 4, 5), floats(4, 1)), {}, (3, 4, 5), ()),
    (("add", floats(3, 4, 5), floats()), {}, (60,), ()),
    (("add", floats(1, 4, 1), floats(4, 1)), {}, (4,), ()),
    (("add", floats(1, 1), floats(1)), {}, (), ()),
    (("add", floats(B, S, 8), floats(B, S, 8)), {}, (8 * B * S,), ()),
    (("add", floats(B, S, 8), floats(8)), {}, (B * S, 8), ()),
    (("add", floats(B, S), floats(T)), {}, None, ()),
    (("transpose", floats(3, 4, 5)), {"perm": (2, 0, 1)}, (5, 12), ()),
    (("transpose", floats(3, 4, 5)), {"perm": (2, 1, 0)}, (5, 4, 3), ()),
    (("slice", floats(3, 4, 5)),
     {"starts": (1, 0, 0), "steps": (1, 1, 1), "shape": (2, 4, 5)}, (40,), ()),
    (("slice", floats(3, 4, 5)),
     {"starts": (0, 0, 1), "steps": (1, 1, 1), "shape": (3, 4, 2)}, (12, 2), ()),
    (("slice", floats(3, 4, 5)),
     {"starts": (2, 3, 4), "steps": (-1, -1, -1), "shape": (3, 4, 5)}, (60,), ()),
    (("iota",), {"shape": (3, 4, 5), "axis": 0}, (3, 20), ()),
    (("iota",), {"shape": (3, 4, 5), "axis": 2}, (12, 5), ()),
    (("iota",), {"shape": (1, 5), "axis": 0}, (1, 5), ()),
    (("reduce", floats(3, 4, 5)), {"kind": "sum", "axes": (0,)}, (20,), (3,)),
    (("reduce", floats(3, 4, 5)), {"kind": "sum", "axes": (1, 2)}, (3,), (20,)),
    (("reduce", floats(3, 4, 5)), {"kind": "sum", "axes": (0, 2)}, (4,), (3, 5)),
    (("reduce", floats(3, 4, 5)), {"kind": "sum", "axes": (0, 1, 2)}, (), (60,)),
    (("arg_reduce", floats(3, 1, 5)), {"kind": "argmax", "axis": 1, "last": False}, (15,), (1,)),
    (("softmax", floats(3, 4, 5)), {"axis": 2, "log": False}, (12,), (5,)),
    (("softmax", floats(3, 4, 5)), {"axis": 0, "log": False}, (20,), (3,)),
    (("gather", floats(9, 4, 5), integers(2, 3)), {"axis": 0}, (6, 20), ()),
)  # fmt: skip


@pytest.mark.parametrize("case", CONTIGUOUS, ids=lambda c: " ".join(map(str, c[0])))
def test_axes_that_are_walked_as_one(case: Any) -> None:
    (op, *types), attributes, kept, reduced = case
    nest, results = nest_of(op, *types, **attributes)
    size = {"B": 2, "S": 3, "T": 3}
    kernel = assert_same_addresses(nest, contiguous(results), size)
    if kept is not None:
        assert kernel.kept == kept
    assert kernel.reduced == reduced


def test_the_result_can_lie_apart() -> None:
    """A part of a concatenation, a transposed result: its strides decide too."""
    nest, (result,) = nest_of("negative", floats(3, 4, 5))
    part = Operand(FLOAT32, result.shape, (100, 5, 1), 40)
    assert assert_same_addresses(nest, [part]).kept == (3, 20)
    turned = Operand(FLOAT32, result.shape, (1, 3, 12))
    assert assert_same_addresses(nest, [turned]).kept == (3, 4, 5)


def test_parameters_are_the_dims_of_a_kernel_once() -> None:
    nest, results = nest_of("add", floats(B, S, 8), floats(S, 1))
    kernel = kernel_of(nest, contiguous(results))
    parameters = kernel.parameters()
    assert len(set(parameters)) == len(parameters)
    assert set(parameters) >= {B, S, 8 * S}
    assert not any(isinstance(p, int) for p in parameters)
    fixed, results = nest_of("add", floats(3, 4), floats(4))
    assert kernel_of(fixed, contiguous(results)).parameters() == ()


def test_steps_that_only_say_where_are_not_computed() -> None:
    nest, results = nest_of(
        "slice", floats(S, 9), starts=(S - 1, 0), steps=(-1, 2), shape=(S, 4)
    )  # fmt: skip
    kernel = kernel_of(nest, contiguous(results))
    assert [step.op for step in kernel.steps] == ["load"]


# Any layout.


@st.composite
def layouts(draw: st.DrawFn, type_: TensorType) -> Operand:
    """Elements that lie apart from each other, in any order of axes, some of them backwards."""
    order = draw(st.permutations(range(type_.rank)))
    strides = [0] * type_.rank
    stride = draw(st.integers(1, 2))
    offset = draw(st.integers(0, 3))
    for axis in order:
        extent = type_.shape[axis]
        assert isinstance(extent, int)
        backwards = draw(st.booleans())
        strides[axis] = -stride if backwards else stride
        offset += (extent - 1) * stride if backwards else 0
        stride *= extent + draw(st.integers(0, 1))
    return Operand(type_.dtype, type_.shape, tuple(strides), offset)


EXTENTS = st.integers(1, 3)
SHAPES = st.lists(EXTENTS, min_size=1, max_size=4).map(tuple)


@st.composite
def applications(draw: st.DrawFn) -> tuple[Nest, tuple[TensorType, ...]]:
    shape = draw(SHAPES)
    rank, axis = len(shape), draw(st.integers(0, len(shape) - 1))
    x = floats(*shape)
    kind = draw(st.sampled_from(
        ["pointwise", "where", "transpose", "broadcast", "slice", "pad", "tile", "reduce",
         "softmax", "norm", "arg", "gather", "gather_elements", "scan", "matmul", "scatter"]
    ))  # fmt: skip
    if kind in ("pointwise", "where"):
        count = 3 if kind == "where" else 2
        some = [
            tuple(1 if draw(st.booleans()) else n for n in shape[draw(st.integers(0, rank)) :])
            for _ in range(count)
        ]
        dtypes = (BOOL, FLOAT32, FLOAT32) if kind == "where" else (FLOAT32, FLOAT32)
        types = [TensorType(d, s) for d, s in zip(dtypes, some, strict=True)]
        return nest_of("where" if kind == "where" else "multiply", *types)
    if kind == "transpose":
        return nest_of("transpose", x, perm=tuple(draw(st.permutations(range(rank)))))
    if kind == "broadcast":
        return nest_of("broadcast", x, shape=(2, *(3 if n == 1 else n for n in shape)))
    if kind == "slice":
        steps = tuple(draw(st.sampled_from([1, 2, -1])) for _ in shape)
        starts = tuple(n - 1 if s < 0 else 0 for n, s in zip(shape, steps, strict=True))
        extents = tuple(-(-n // abs(s)) for n, s in zip(shape, steps, strict=True))
        return nest_of("slice", x, starts=starts, steps=steps, shape=extents)
    if kind == "pad":
        before = tuple(draw(st.integers(0, 1)) for _ in shape)
        mode = draw(st.sampled_from(["edge", "wrap", "reflect"]))
        return nest_of("pad", x, before=before, after=before, mode=mode)
    if kind == "tile":
        return nest_of("tile", x, repeats=tuple(draw(st.integers(1, 2)) for _ in shape))
    if kind == "reduce":
        axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1)))))
        return nest_of("reduce", x, kind="sum", axes=axes)
    if kind == "softmax":
        return nest_of("softmax", x, axis=axis, log=False)
    if kind == "norm":
        inner = floats(*shape[axis:])
        return nest_of("norm", x, inner, inner, axis=axis, epsilon=1e-5, rms=False)
    if kind == "arg":
        return nest_of("arg_reduce", x, kind="argmax", axis=axis, last=False)
    if kind == "scan":
        reverse = draw(st.booleans())
        return nest_of("cumulative_sum", x, axis=axis, exclusive=False, reverse=reverse)
    if kind == "matmul":
        m, n, k = (draw(EXTENTS) for _ in range(3))
        return nest_of("matmul", floats(*shape[:2], m, k), floats(*shape[1:2], k, n))
    if kind == "gather":
        return nest_of("gather", x, integers(*draw(SHAPES)[:2]), axis=axis)
    if kind == "gather_elements":
        return nest_of("gather_elements", x, integers(*shape), axis=axis)
    same = integers(*shape)
    return nest_of("scatter_elements", x, same, x, axis=axis, kind="none")


@settings(max_examples=150)
@given(applications(), st.data())
def test_addresses_are_those_of_the_definition(
    application: tuple[Nest, tuple[TensorType, ...]], data: st.DataObject
) -> None:
    nest, results = application
    operands = tuple(
        data.draw(layouts(TensorType(o.dtype, tuple(evaluate(n, {}) for n in o.shape))))
        for o in nest.operands
    )
    targets = [data.draw(layouts(r)) for r in results]
    kernel = assert_same_addresses(replace(nest, operands=operands), targets)
    assert len(kernel.kept) <= len(nest.kept)
    assert len(kernel.reduced) <= len(nest.reduced)


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_addresses_with_symbols(b: int, s: int, t: int) -> None:
    bindings = {"B": b, "S": s, "T": t}
    applications = (
        nest_of("add", floats(B, S, 4), floats(S, 1)),
        nest_of("transpose", floats(B, S, T), perm=(1, 2, 0)),
        nest_of("slice", floats(B, S), starts=(0, S - 1), steps=(1, -1), shape=(B, S)),
        nest_of("pad", floats(S, T), before=(1, T), after=(S, 0), mode="edge"),
        nest_of("reduce", floats(B, S, T), kind="sum", axes=(1, 2)),
        nest_of("norm", floats(B, S, T), floats(T), axis=2, epsilon=1e-5, rms=True),
        nest_of("gather", floats(S, T), integers(B), axis=0),
        nest_of("matmul", floats(B, S, T), floats(T, S)),
    )
    for nest, results in applications:
        assert_same_addresses(nest, contiguous(results), bindings)


def test_reads_of_elements_of_every_dtype() -> None:
    """Offsets count elements, whatever their size."""
    for dtype in (BOOL, INT64, FLOAT64):
        nest, results = nest_of("transpose", TensorType(dtype, (3, 4)), perm=(1, 0))
        kernel = kernel_of(nest, contiguous(results))
        (access,) = [a for a in kernel.accesses if a is not None]
        assert access.coefficients == (1, 4)
        assert kernel.targets[0].coefficients == row_major_strides((4, 3))


def test_the_definition_is_that_of_numpy() -> None:
    """NumPy agrees with a definition's addresses on what lies where."""
    x = np.arange(60).reshape(3, 4, 5)
    nest, results = nest_of("transpose", floats(3, 4, 5), perm=(2, 0, 1))
    visits = visits_of_nest(nest, contiguous(results), {})
    turned = np.empty(60, int)
    for (_, source), (_, target) in visits:
        turned[target] = x.flat[source]
    assert np.array_equal(turned.reshape(5, 3, 4), x.transpose(2, 0, 1))


def test_kernels_are_numbered_by_parameters() -> None:
    """Kernels that compute their parameters differently have the same code; what a parameter is
    does not depend on what it is called."""

    def kernel(*shape: Dim) -> Kernel:
        nest, results = nest_of(
            "slice", floats(*shape), starts=(0, S), steps=(1, 2), shape=(shape[0], 3)
        )
        return kernel_of(nest, [contiguous(results)[0]])

    one, other = kernel(B, T), kernel(B * T + 1, quotient(T, 3))
    assert one != other
    assert one.numbered() == other.numbered()
    assert repr(one.numbered()) == repr(other.numbered())
    assert len(one.numbered().parameters()) == len(one.parameters())
    assert [str(p) for p in one.numbered().parameters()] == [
        f"p{i}" for i in range(len(one.parameters()))
    ]
    static = kernel(4, 9)
    assert static.numbered() != one.numbered()
    assert static.numbered() != kernel(4, symbol("9")).numbered()


def test_the_code_of_a_kernel_is_that_of_any_node() -> None:
    """Texts of checks belong to a node of a model; code has their numbers."""

    def kernel(first: str, second: str) -> Kernel:
        outer, inner = (Access(0, (1,), ()) for _ in range(2))
        steps = (
            Step("load", INT64, (), 0), Step("dim", INT64, (), S),
            Step("checked", INT64, (0, 1), first), Step("checked", INT64, (2, 1), second),
            Step("load", FLOAT32, (), 1),
        )  # fmt: skip
        accesses = (outer, None, None, None, Access(0, (0,), ((3, 1),)))
        return Kernel((B,), (), steps, accesses, (), (4,), (inner,), (False,))

    one, other = kernel("b", "a"), kernel("c", "d")
    assert one.checks() == ("b", "a")
    assert one.numbered() == other.numbered()
    assert len(one.numbered().checks()) == 2
    assert kernel("a", "a").numbered() != one.numbered()
