"""Kernels of nests that write or read where data tells."""

import numpy as np
import pytest
import torch
from tests.codegen.llvm.nest_running import A, B, C, Case, below, values_of
from tests.codegen.triton.nest_launching import buffer, chosen, launch, small
from tests.guarded import Guard

from ftuner.core.access import kernel_of
from ftuner.core.dim import minimum
from ftuner.core.dtype import INT64
from ftuner.core.index_expr import Nest, Operand, Store, Writer
from ftuner.graph.operators import OPERATORS
from ftuner.schedules.nest.gpu_kernel import nest_kernel


@pytest.mark.parametrize("kind", ["none", "add", "multiply", "maximum", "minimum"])
def test_scatter(kind: str) -> None:
    """Into a copy of the first operand, element by element: of equal indices the last decides."""
    cases = [
        Case("scatter_elements", ((dtype, (B, C)), ("int64", (A, C)), (dtype, (A, C))),
             {"axis": 0, "kind": kind}, (values_of, below(B), values_of))
        for dtype in ("float32", "int8", "uint64")
    ]  # fmt: skip
    cases += [
        Case("scatter_elements", (("float32", (A, C)), ("int32", (A, B)), ("float32", (A, B))),
             {"axis": 1, "kind": kind}, (values_of, below(C), values_of)),
        Case("scatter_nd", (("int32", (B, C, 3)), ("int32", (A, 2)), ("int32", (A, 3))),
             {"kind": kind}, (values_of, below(minimum(B, C)), values_of)),
        Case("scatter_nd", (("float32", (B,)), ("int64", (A, 1)), ("float32", (A,))),
             {"kind": kind}, (values_of, below(B), values_of)),
    ]  # fmt: skip
    for case in cases:
        kernel = case.kernel()
        for bindings in ({"A": 7, "B": 5, "C": 11}, {"A": 1, "B": 1, "C": 1},
                         {"A": 0, "B": 2, "C": 3}):  # fmt: skip
            for schedule in (chosen(kernel, bindings), small(kernel)):
                arrays = case.arrays(bindings, 3)
                out = Guard(arrays[0].shape, arrays[0].dtype.name)
                out.array[...] = arrays[0]
                made = nest_kernel(kernel, schedule)
                given = [buffer(x) for x in arrays]
                assert launch(made, given, [buffer(out.array)], bindings) == 0
                assert not out.damage()
                expected = OPERATORS[case.op].reference(*arrays, **case.attributes)
                assert np.allclose(out.array, expected, rtol=1e-5), case


# Indices out of range.


def test_indices_out_of_range_are_told() -> None:
    """The status says which check failed; all others are carried out, and what is read or written
    by a wrong one is nothing: not even of an operand without elements."""
    case = Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 0, "node": "here"})
    elements = Case("gather_elements", (("float32", (A, C)), ("int64", (A, C))),
                    {"axis": 1, "node": "there"})  # fmt: skip
    made, along_rows = nest_kernel(case.kernel()), nest_kernel(elements.kernel())
    assert (made.checks, along_rows.checks) == (("here",), ("there",))
    bindings = {"A": 5, "B": 9, "C": 37}
    x, indices = case.arrays(bindings, 0)
    for wrong in (5, -6, 2**62, -(2**63)):
        for position in (0, 4, 8):
            at = np.abs(indices) % 5
            at[position] = wrong
            out = Guard((9, 37), "float32")
            status = launch(made, [buffer(x), buffer(at)], [buffer(out.array)], bindings)
            assert status == 1
            right = np.arange(9) != position
            assert np.array_equal(out.array[right], x[at[right]])
            assert not out.array[position].any()
            assert not out.damage()
    at = np.zeros((5, 37), np.int64)
    for wrong, told in ((37, 1), (-38, 1), (-37, 0)):
        at[3, 36] = wrong
        out = Guard((5, 37), "float32")
        given = [buffer(x), buffer(at)]
        assert launch(along_rows, given, [buffer(out.array)], bindings) == told
    none = {"A": 0, "B": 9, "C": 37}
    nowhere = torch.empty(0, dtype=torch.float32)
    out = Guard((9, 37), "float32")
    assert launch(made, [nowhere, buffer(indices)], [buffer(out.array)], none) == 1
    assert not out.array.any()


def test_nothing_is_written_at_wrong_indices() -> None:
    case = Case("scatter_nd", (("float32", (B, C)), ("int64", (A, 1)), ("float32", (A, C))),
                {"kind": "add", "node": "scatter"})  # fmt: skip
    made = nest_kernel(case.kernel())
    x, updates = np.ones((4, 5), np.float32), np.full((3, 5), 2, np.float32)
    at = np.array([[1], [4], [-5]])
    out = Guard((4, 5), "float32")
    out.array[...] = x
    given = [buffer(x), buffer(at), buffer(updates)]
    assert launch(made, given, [buffer(out.array)], {"A": 3, "B": 4, "C": 5}) == 1
    assert not out.damage()
    x[1] += 2
    assert np.array_equal(out.array, x)


def test_the_number_of_a_check() -> None:
    """Two indices, the second of which is wrong."""
    shape = (4,)
    writer = Writer()
    found = []
    for operand, text in ((0, "alpha"), (1, "beta")):
        index = writer.step("load", INT64, writer.index(0), payload=operand)
        found.append(writer.step("checked", INT64, index, writer.integer(8), payload=text))
    operands = (Operand(INT64, shape, (1,)),) * 2
    total = writer.add(*found)
    nest = Nest(shape, (), operands, tuple(writer.steps), (), (Store(total, (0,)),))
    made = nest_kernel(kernel_of(nest, [Operand(INT64, shape, (1,))]))
    assert made.checks == ("alpha", "beta")
    right, wrong = torch.tensor([1, 2, -1, 7]), torch.tensor([1, 8, 2, 3])
    out = torch.empty(4, dtype=torch.int64)
    assert launch(made, [right, right], [out], {}) == 0
    assert out.tolist() == [2, 4, 14, 14]
    assert launch(made, [right, wrong], [out], {}) == 2


def test_lanes_beyond_the_edge_and_elements_that_nobody_takes_are_not_checked() -> None:
    """An index that is not loaded, up to the extent and beyond; and then only as far as it is
    taken."""
    for taken, extent, status in ((8, 8, 0), (3, 3, 0), (4, 3, 1)):
        writer = Writer()
        index = writer.index(0)
        at = writer.step("checked", INT64, index, writer.integer(extent), payload="here")
        value = writer.step("load", INT64, at, payload=0)
        if taken < 8:
            inside = writer.compare("less", index, writer.integer(taken))
            value = writer.where(inside, value, writer.integer(-1))
        operand = Operand(INT64, (extent,), (1,))
        steps = tuple(writer.steps)
        nest = Nest((A,), (), (operand,), steps, (), (Store(value, (0,)),))
        made = nest_kernel(kernel_of(nest, [Operand(INT64, (A,), (1,))]))
        x, out = torch.arange(10, 10 + extent), torch.zeros(8, dtype=torch.int64)
        assert launch(made, [x], [out], {"A": 8}) == status
        expected = [10 + i if i < extent else 0 for i in range(taken)] + [-1] * (8 - taken)
        assert out.tolist() == expected
