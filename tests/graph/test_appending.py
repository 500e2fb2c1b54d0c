"""The memory of outputs that append to an input, and what is computed in it."""

from collections.abc import Sequence

import pytest
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.core.evaluation import evaluate
from ftuner.graph.appending import ROOM_ROWS, Appended, appended_outputs, memory_shape
from ftuner.graph.ir import TensorType, Value
from ftuner.graph.lowering import lower
from ftuner.schedules.nest.step import NestStep


def appended(g: Maker, name: str = "x") -> Value:
    past, new = g.given(name, B, S, 8), g.given(f"{name}_new", B, T, 8)
    return g.add("concat", past, new, axis=1)


def two_of_three(g: Maker) -> list[Value]:
    x, y = appended(g), appended(g, "y")
    return [x, g.add("add", x, g.number(1)), y]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_room(axis: int) -> None:
    """A multiple of ROOM_ROWS along the axis, at least the rows that there are and less than
    ROOM_ROWS more; it depends on nothing but the number of rows."""
    n = symbol("N")
    shape = (3, 4, 5)
    symbolic = tuple(n if i == axis else extent for i, extent in enumerate(shape))
    memory = memory_shape(symbolic, axis)
    whole = Value("whole", TensorType(FLOAT32, symbolic))
    pair, sliding = (
        Appended(0, 0, axis, 0, whole, (whole,), (whole,), slides=slides)
        for slides in (False, True)
    )
    layout = pair.layout
    assert pair.room == memory
    assert layout.shape == symbolic
    for rows in (0, 1, ROOM_ROWS - 1, ROOM_ROWS, ROOM_ROWS + 1, 5 * ROOM_ROWS):
        found = tuple(evaluate(extent, {"N": rows}) for extent in memory)
        assert [x for i, x in enumerate(found) if i != axis] == [
            x for i, x in enumerate(shape) if i != axis
        ]
        assert found[axis] % ROOM_ROWS == 0
        assert rows <= found[axis] < rows + ROOM_ROWS
        strides = [evaluate(stride, {"N": rows}) for stride in layout.strides]
        assert strides == [found[1] * found[2], found[2], 1]
        assert evaluate(sliding.room[axis], {"N": rows}) == found[axis] + ROOM_ROWS


def test_what_is_in_place_is_not_written() -> None:
    graph = graph_of(two_of_three)
    pairs = appended_outputs(graph)

    def copies(steps: Sequence[object]) -> int:
        return sum(isinstance(step, NestStep) and step.title == "copy" for step in steps)

    plain, lowered = lower(graph), lower(graph, appended=pairs)
    assert copies(plain.steps) == 4
    assert copies(lowered.steps) == 2
    assert lowered.appended == pairs
    for pair in pairs:
        assert all(b.number != pair.input for s in lowered.steps for b in s.reads
                   if b.kind == "input")  # fmt: skip
        assert not lowered.outputs[pair.output].contiguous
    assert lowered.outputs[1].contiguous
