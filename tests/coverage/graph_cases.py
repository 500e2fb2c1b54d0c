"""Graphs that fill the cells of operators, nests, attention and epilogues."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.codegen.llvm.nest_running import A, B, Bindings, C, Case, assert_equal
from tests.coverage.cells import (
    BROADCAST,
    CONSTANT,
    CONTIGUOUS,
    EXPRESSION,
    LAYOUTS,
    PERMUTED,
    REVERSED,
    STEPPED,
)
from tests.coverage.claims import SIDES, epilogue_functions, layouts, may_be_constant, signatures
from tests.coverage.templates import TEMPLATES, Template
from tests.graph.graphs import Maker, assert_close, inputs_of, reference
from tests.guarded import Array

from ftuner.core.dim import Shape
from ftuner.core.dtype import BOOL, DTYPES, INT64, TENSOR_DTYPES, DType
from ftuner.core.evaluation import evaluate
from ftuner.graph.ir import Graph, Value
from ftuner.graph.operators import OPERATORS

BINDINGS = ({"A": 3, "B": 5, "C": 37}, {"A": 2, "B": 1, "C": 64})


@dataclass(frozen=True)
class Directed:
    """A case, and how its operands lie."""

    case: Case
    layouts: tuple[str, ...]

    def arrays(self, bindings: Bindings, seed: int) -> list[Array]:
        """The operands; broadcast ones repeat along an axis what they begin with."""
        found = []
        for x, layout, (_, shape) in zip(
            self.case.arrays(bindings, seed), self.layouts, self.case.operands, strict=True
        ):
            if layout == BROADCAST:
                first = np.take(x, [0], _long_axis(shape))
                x = np.ascontiguousarray(np.broadcast_to(first, x.shape))
            found.append(x)
        return found


def directed() -> list[Directed]:
    """Cases such that each operator meets all its dtypes, all its variants, and each operand in
    every layout."""
    found = []
    for templates in TEMPLATES.values():
        by_count = itertools.groupby(sorted(templates, key=_count), _count)
        for _, group in by_count:
            pairs = _pairs(list(group))
            for i in range(max(len(pairs), len(LAYOUTS))):
                template, dtypes = pairs[i % len(pairs)]
                ways = [_open_layouts(template, n) for n in range(_count(template))]
                lie = tuple(way[(i + n) % len(way)] for n, way in enumerate(ways))
                found.append(Directed(template.of(dtypes), lie))
    return [d for d in found if not OPERATORS[d.case.op].on_host]


def _open_layouts(template: Template, number: int) -> tuple[str, ...]:
    """Those of operands that come with each run, and of weights."""
    found = layouts(template, number)
    return found if number in template.weights else tuple(x for x in found if x != CONSTANT)


def with_constants() -> list[Directed]:
    """Cases of fixed extents, at the first of `BINDINGS`, in which each operand is a constant."""
    found = []
    for template in (t for templates in TEMPLATES.values() for t in templates):
        if may_be_constant(template):
            case = template.of(signatures(template)[0])
            operands = tuple(
                (dtype, tuple(evaluate(n, BINDINGS[0]) for n in shape))
                for dtype, shape in case.operands
            )
            fixed = replace(case, operands=operands, attributes=case.bound(BINDINGS[0]))
            count = _count(template)
            for n in range(count):
                lie = tuple(CONSTANT if i == n else CONTIGUOUS for i in range(count))
                found.append(Directed(fixed, lie))
    return found


def _count(template: Template) -> int:
    return len(template.shapes)


def _pairs(templates: Sequence[Template]) -> list[tuple[Template, tuple[DType, ...]]]:
    """Templates with dtypes: each template, and each dtype of each operand, at least once."""
    every = [(t, dtypes) for t in templates for dtypes in signatures(t)]
    if templates[0].op in ("attention", "top_k"):
        # Each pair has a cell.
        return every
    # Other templates for other dtypes, as far as they take them.
    numbers = {id(t): i for i, t in enumerate(templates)}
    count = len(every)
    every.sort(key=lambda p: (signatures(p[0]).index(p[1]) - numbers[id(p[0])]) % count)
    found: list[tuple[Template, tuple[DType, ...]]] = []
    left = {(i, dtype) for _, dtypes in every for i, dtype in enumerate(dtypes)}
    for template, dtypes in every:
        new = left.intersection(enumerate(dtypes))
        if new or all(template is not t for t, _ in found):
            left -= new
            found.append((template, dtypes))
    return found


class DirectedGraph(Maker):
    """One graph of many cases, each with inputs and outputs of its own."""

    def __init__(self, cases: Sequence[Directed]) -> None:
        super().__init__()
        self.cases = cases
        self._outputs: list[Value] = []
        self._weights: dict[tuple[int, int], Array] = {}
        for number, d in enumerate(cases):
            operands = [
                self._operand(f"x{number}_{i}", number, i, TENSOR_DTYPES[dtype], shape, layout)
                for i, ((dtype, shape), layout) in enumerate(
                    zip(d.case.operands, d.layouts, strict=True)
                )
            ]
            self._outputs += self.add_many(d.case.op, *operands, **d.case.attributes)
        self.graph_made = self.made(*self._outputs)

    def _operand(
        self, name: str, number: int, i: int, dtype: DType, shape: Shape, layout: str
    ) -> Value:
        rank = len(shape)
        if layout == CONSTANT:
            array = self.cases[number].arrays(BINDINGS[0], number)[i]
            self._weights[number, i] = array
            return self.constant(array)
        if layout == CONTIGUOUS:
            return self.given(name, *shape, dtype=dtype)
        if layout == EXPRESSION:
            x = self.given(name, *shape, dtype=dtype)
            return self.add("logical_or" if dtype == BOOL else "maximum", x, x)
        if layout == PERMUTED:
            x = self.given(name, *shape[::-1], dtype=dtype)
            return self.add("transpose", x, perm=tuple(reversed(range(rank))))
        axis = _long_axis(shape)
        starts, steps, base = [0] * rank, [1] * rank, list(shape)
        if layout == BROADCAST:
            base[axis] = 1
            return self.add("broadcast", self.given(name, *base, dtype=dtype), shape=shape)
        if layout == STEPPED:
            steps[axis], base[axis] = 2, 2 * shape[axis]
        else:
            assert layout == REVERSED
            steps[axis], starts[axis] = -1, shape[axis] - 1
        x = self.given(name, *base, dtype=dtype)
        return self.add("slice", x, starts=tuple(starts), steps=tuple(steps), shape=shape)

    def feeds(self, bindings: Bindings) -> dict[str, Array]:
        """Inputs such that operands are those of the cases."""
        found = {}
        for number, d in enumerate(self.cases):
            arrays = d.arrays(bindings, number)
            for i, (x, layout) in enumerate(zip(arrays, d.layouts, strict=True)):
                if layout != CONSTANT:
                    found[f"x{number}_{i}"] = _base(x, layout, d.case.operands[i][1])
        return found

    def check(self, results: Sequence[Array], bindings: Bindings) -> None:
        """All results are the operators' references."""
        left = iter(results)
        for number, d in enumerate(self.cases):
            arrays = d.arrays(bindings, number)
            arrays = [self._weights.get((number, i), x) for i, x in enumerate(arrays)]
            if d.case.op == "top_k":
                expected = OPERATORS["top_k"].reference(*arrays, **d.case.bound(bindings))
                for y in expected:
                    assert np.array_equal(next(left), y), d
                continue
            if d.case.op == "recurrence":
                wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in arrays]
                expected = OPERATORS["recurrence"].reference(*wide, **d.case.bound(bindings))
                for y in expected:
                    found = next(left)
                    assert_close([found], [y.astype(found.dtype)], str(d))
                continue
            try:
                assert_equal(d.case, next(left), arrays, bindings)
            except AssertionError as error:
                raise AssertionError(f"{d.layouts}: {error}") from None


def _long_axis(shape: Shape) -> int:
    """The last axis that may have several elements."""
    return max(axis for axis, n in enumerate(shape) if n != 1)


def _base(x: Array, layout: str, shape: Shape) -> Array:
    """What a view of a layout shows `x` of."""
    if layout == PERMUTED:
        return np.ascontiguousarray(x.transpose())
    if layout in (CONTIGUOUS, EXPRESSION):
        return x
    axis = _long_axis(shape)
    if layout == BROADCAST:
        return np.take(x, [0], axis)
    if layout == REVERSED:
        return np.ascontiguousarray(np.flip(x, axis))
    return np.repeat(x, 2, axis)


# Accesses of every dtype.


def accesses() -> Graph:
    """Loads of all layouts and stores along and across vectors, of all dtypes."""
    maker = Maker()
    outputs = []
    for name, dtype in TENSOR_DTYPES.items():
        x, y = (maker.given(f"{name}_{n}", A, B, C, dtype=dtype) for n in "xy")
        across = maker.add("slice", x, starts=(0, 0, C - 1), steps=(1, 1, -1), shape=(A, B, C))
        row = maker.given(f"{name}_row", C, dtype=dtype)
        column = maker.given(f"{name}_column", A, B, 1, dtype=dtype)
        at = maker.given(f"{name}_at", 3, dtype=TENSOR_DTYPES["int64"])
        outputs += [maker.add("equal", across, y), maker.add("equal", y, column)]
        outputs.append(maker.add("gather", row, at, axis=0))
        # Columns side by side, and one number for each row.
        outputs.append(maker.add("concat", column, column, axis=2))
        total = maker.add("reduce", maker.add("cast", y, to=TENSOR_DTYPES["int32"]), kind="maximum",
                          axes=(2,))  # fmt: skip
        outputs.append(maker.add("cast", total, to=dtype))
    return maker.made(*outputs)


# Products.


def epilogues(dtype: DType) -> Iterator[Graph]:
    """Products that end in every function, with every kind of operand on both sides."""
    chains: list[list[tuple[str, str, str]]] = [[(op, "alone", "") for op in _ALONE]]
    for op in epilogue_functions(2):
        chains.append([(op, how, side) for how in ("column", "matrix") for side in SIDES])
    chains.append([(op, "a number", side) for op in epilogue_functions(2) for side in SIDES])
    return (_chain(dtype, chain) for chain in chains)


_ALONE = ("tanh", "exp", "log", "absolute", "log1p", "sqrt", "negative", "erf", "erfc", "expm1",
          "sigmoid", "gelu", "gelu_tanh", "silu", "softplus", "mish", "hard_swish",
          "round_float16", "round_bfloat16")  # fmt: skip
"""In an order in which each has arguments that it is good for."""
assert set(_ALONE) == set(epilogue_functions(1))


def _chain(dtype: DType, functions: Sequence[tuple[str, str, str]]) -> Graph:
    """A product with a weight, squeezed to between zero and one, and functions of that."""
    maker = Maker()
    random = np.random.default_rng(0)
    n, k = 7, 5

    def some(*shape: int) -> Value:
        return maker.constant(random.uniform(0.5, 1.5, shape).astype(dtype.name))

    x = maker.given("x", B, k, dtype=dtype)
    y = maker.add("matmul", x, maker.constant(random.uniform(-1, 1, (k, n)).astype(dtype.name)))
    y = maker.add("sigmoid", y)
    for i, (op, how, side) in enumerate(functions):
        if how == "alone":
            y = maker.add(op, y)
            continue
        # Other numbers become columns.
        number = np.array(random.choice([0.5, 0.75, 1.0, 1.5]), dtype.name)
        other = maker.constant(number) if how == "a number" else some(n)
        if how == "matrix":
            other = maker.given(f"m{i}", B, n, dtype=dtype)
        y = maker.add(op, *((y, other) if side == SIDES[0] else (other, y)))
    return maker.made(y)


def assert_epilogue(graph: Graph, run: Any) -> None:
    """Right at some numbers of rows."""
    for rows in (1, 5, 21):
        inputs = inputs_of(graph, {"B": rows})
        inputs = {n: np.abs(v) + 0.5 if n != "x" else v for n, v in inputs.items()}
        inputs = {n: v.astype(graph.inputs[0].dtype.name) for n, v in inputs.items()}
        (found,) = run(inputs)
        (expected,) = reference(graph, inputs)
        tolerance = 1e-4 if graph.inputs[0].dtype == DTYPES["float32"] else 1e-10
        np.testing.assert_allclose(found, expected, tolerance, tolerance)


def on_host() -> Graph:
    """Extents that only data tells, and what a library computes, of all dtypes."""
    maker = Maker()
    found = [
        maker.add("non_zero", maker.given(name, A, C, dtype=dtype), count=f"count_{name}")
        for name, dtype in TENSOR_DTYPES.items()
    ]
    for number, (name, dtype) in enumerate(TENSOR_DTYPES.items()):
        attributes = {"axis": (None, 0)[number % 2], "ordered": number % 4 < 2}
        x = maker.given(f"unique_{name}", A, C, dtype=dtype)
        found += maker.add_many("unique", x, count=f"different_{name}", **attributes)
    for name, dtype in TENSOR_DTYPES.items():
        if dtype.kind == "int":
            sizes = maker.add("absolute", maker.given(f"sizes_{name}", 2, dtype=dtype))
            counts = f"first_{name}", f"second_{name}"
            found += maker.add_many("extents", sizes, counts=counts)
    for name, dtype in DTYPES.items():
        square = maker.given(f"square_{name}", A, 3, 3, dtype=dtype)
        found.append(maker.add("determinant", square))
        pairs = maker.given(f"pairs_{name}", A, 3, dtype=dtype)
        found += [maker.add(op, pairs) for op in ("coupled_probabilities", "couple")]
        scores = maker.given(f"scores_{name}", A, 2, C, dtype=dtype)
        boxes = maker.given(f"boxes_{name}", A, C, 4, dtype=dtype)
        attributes = {"centred": False, "iou_threshold": 0.2, "score_threshold": 0.1, "limit": 4}
        count = f"boxes_{name}_kept"
        found.append(maker.add("non_max_suppression", scores, boxes, count=count, **attributes))
    kept = maker.given("kept", A, B, C, 3, dtype=INT64)
    found.append(maker.add("kept_boxes", kept, count="kept_count"))
    return maker.made(*found)
