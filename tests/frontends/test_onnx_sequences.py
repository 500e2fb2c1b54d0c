"""Sequences and optionals within a model against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from tests.frontends.control_models import expect_agreement, floats
from tests.frontends.onnx_models import parsed

from ftuner.errors import GraphError, IndexRangeError, ShapeError
from ftuner.inference import load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.specialization import SpecializedModel

ONE, BACK = np.int64(1), np.int64(-1)


def feeds(*rows: int) -> list[dict[str, Any]]:
    return [{"x": floats(n, 3), "y": floats(n + 1, 3)} for n in rows]


def test_sequences_are_made_and_taken_apart(widest: CpuBackend) -> None:
    model = parsed("""(float[n, 3] x, float[m, 3] y)
            => (float[k, 3] out, float[l, 3] first_two, int64 count)
            <int64 one = {1}, int64 back = {-1}> {
        s = SequenceConstruct(x, y)
        none = SequenceEmpty()
        only = SequenceInsert(none, x)
        x_again = SequenceAt(only, back)
        minus = Neg(x_again)
        three = SequenceInsert(s, minus, one)
        two = SequenceErase(three, back)
        without_last = SequenceErase(three)
        first_two = ConcatFromSequence<axis=0>(without_last)
        same = Identity(two)
        out = ConcatFromSequence<axis=0>(same)
        count = SequenceLength(three)
    }""")
    expect_agreement(model, *feeds(2, 5, 0))


@pytest.mark.parametrize("split", [None, 2, [1, 3, 1]])
def test_splits(widest: CpuBackend, split: Any) -> None:
    operands, rank = ("<keepdims=0>(x)", "3") if split is None else ("(x, split)", "k, 3")
    text = f"""(float[5, 3] x, int64 at) => (float[{rank}] out, int64 count) {{
        s = SplitToSequence{operands}
        out = SequenceAt(s, at)
        count = SequenceLength(s)
    }}"""
    model = parsed(text, **({} if split is None else {"split": np.array(split)}))
    given = [{"x": floats(5, 3), "at": np.array(at)} for at in (0, 2, -1)]
    expect_agreement(model, *given)
    with pytest.raises(IndexRangeError, match=r"SequenceAt node .* (position 5|out of range)"):
        load(model).run({"x": floats(5, 3), "at": np.array(5)})


def taken_at(position: int) -> Any:
    text = """(float[n, 3] x) => (float[3] out) {
        s = SplitToSequence<axis=0, keepdims=0>(x)
        out = SequenceAt(s, at)
    }"""
    return parsed(text, at=np.int64(position))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("split", "keepdims"), [(None, 0), (None, 1), (1, 1), (2, 1)])
def test_one_model_takes_any_number_of_pieces(
    widest: CpuBackend, axis: int, split: int | None, keepdims: int
) -> None:
    """Of an axis of any extent, which an exporter takes apart and puts together again."""
    split_too, kept = "" if split is None else ", split", bool(keepdims)
    rank = "a, b" if kept else "a"
    text = f"""(float[n, m] x)
            => (float[{rank}] second, float[{rank}] last, int64 count, float[c, d] whole) {{
        s = SplitToSequence<axis={axis}, keepdims={keepdims}>(x{split_too})
        second = SequenceAt(s, one)
        last = SequenceAt(s, back)
        count = SequenceLength(s)
        whole = ConcatFromSequence<axis={axis if kept else 1}, new_axis={1 - keepdims}>(s)
    }}"""
    constants = {} if split is None else {"split": np.int64(split)}
    model = parsed(text, one=ONE, back=BACK, **constants)
    assert not isinstance(load(model), SpecializedModel)
    expect_agreement(model, *({"x": floats(n, n + 1)} for n in (4, 9, 3)))


PIECE = """(float[n, 3] x, AT) => (float[1, 3] out) {
    s = SplitToSequence<axis=0>(x)
    out = SequenceAt(s, at)
}"""


def test_a_piece_at_a_computed_position_is_in_the_same_model(widest: CpuBackend) -> None:
    model = parsed(PIECE.replace("AT", "int64 at"))
    assert not isinstance(load(model), SpecializedModel)
    expect_agreement(
        model, *({"x": floats(n, 3), "at": np.array(at)} for n, at in ((4, 3), (9, 0), (2, -2)))
    )


@pytest.mark.parametrize("position", [2, -3])
def test_positions_beyond_a_sequence_of_any_length(widest: CpuBackend, position: int) -> None:
    expect_agreement(taken_at(position), *({"x": floats(n, 3)} for n in (3, 8)))
    with pytest.raises(ShapeError, match=f"SequenceAt node .* lacks for position {position}"):
        load(taken_at(position)).run({"x": floats(2, 3)})


def test_several_positions_at_once_are_refused(widest: CpuBackend) -> None:
    model = parsed(PIECE.replace("AT", "int64[2, 1] at"))
    with pytest.raises(GraphError, match=r"SequenceAt node .* expected one element"):
        load(model)


def test_pieces_are_changed_as_a_sequence(widest: CpuBackend) -> None:
    """Such a sequence must be of known length: one model for each."""
    text = """(float[n, 3] x) => (float[k, 3] out) {
        s = SplitToSequence<axis=0>(x)
        fewer = SequenceErase(s, one)
        out = ConcatFromSequence<axis=0>(fewer)
    }"""
    expect_agreement(parsed(text, one=ONE), *({"x": floats(n, 3)} for n in (3, 5)))


@pytest.mark.parametrize("new_axis", [0, 1])
def test_maps(widest: CpuBackend, new_axis: int) -> None:
    """A function of the tensors of a sequence and of one tensor, which reads a value around it."""
    model = parsed(f"""(float[n, 3] x) => (float[{"a, b, c" if new_axis else "a, b"}] out) {{
        e = Exp(x)
        s = SequenceConstruct(x, e, e)
        mapped = SequenceMap(s, e)
                <body = body (float[n, 3] a, float[n, 3] b) => (float[n, 3] q) {{
            p = Mul(a, b)
            q = Add(p, x)
        }}>
        out = ConcatFromSequence<axis=1, new_axis={new_axis}>(mapped)
    }}""")
    expect_agreement(model, *({"x": floats(n, 3)} for n in (2, 0, 7)))


def appending(nodes: str) -> str:
    """The body of a loop that carries a sequence `s`."""
    return f"""body (int64 i, bool go, seq(float[]) s) => (bool go, seq(float[]) s_next) {{
        f = Cast<to=1>(i)
        {nodes}
    }}"""


PLAIN = appending("sum = Add(x, f) s_next = SequenceInsert(s, sum)")


@pytest.mark.each_value
@pytest.mark.parametrize("known", [None, 4, 20])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("axis", "new_axis"), [(0, 0), (1, 0), (-1, 0), (0, 1), (2, 1)])
def test_a_loop_appends_to_a_sequence(
    widest: CpuBackend, known: int | None, first: bool, axis: int, new_axis: int
) -> None:
    """However often it runs, which may come at run time, one model serves."""
    text = f"""(float[n, 3] x{", int64 n" if known is None else ""})
            => (float[{"k, l, m"[: 4 + 3 * new_axis]}] out, int64 count, float[n, 3] end) {{
        first = {"SequenceConstruct(x)" if first else "SequenceEmpty()"}
        last = Loop(n, "", first) <body = {PLAIN}>
        out = ConcatFromSequence<axis={axis}, new_axis={new_axis}>(last)
        count = SequenceLength(last)
        end = SequenceAt(last, back)
    }}"""
    model = parsed(text, back=BACK, **({} if known is None else {"n": np.int64(known)}))
    counts = [{"n": np.array(n)} for n in (3, 1, 6)] if known is None else [{}]
    loaded = expect_agreement(
        model, *({"x": floats(n, 3), **c} for n, c in zip((2, 5, 4), counts, strict=False))
    )
    assert not isinstance(loaded, SpecializedModel)


def test_a_loop_appends_to_the_sequence_of_the_loop_around(widest: CpuBackend) -> None:
    """It carries a sequence of its own, which it does not append to."""
    model = parsed("""(float[n, 3] x, int64 n, int64 m) => (int64 count, int64[k] lengths) {
        first = SequenceEmpty()
        last, lengths = Loop(n, "", first) <body = body (int64 i, bool go, seq(float[]) outer)
                => (bool go, seq(float[]) outer_next, int64 length) {
            none = SequenceEmpty()
            longer = Loop(m, "", none) <body = inner (int64 j, bool going, seq(float[]) inner)
                    => (bool on, seq(float[]) inner_next) {
                inner_next = SequenceInsert(outer, x)
                on = Identity(go)
            }>
            length = SequenceLength(longer)
            outer_next = SequenceInsert(outer, x)
        }>
        count = SequenceLength(last)
    }""")
    counts = [(3, 2), (1, 1), (2, 0), (4, 3)]
    expect_agreement(
        model, *({"x": floats(2, 3), "n": np.array(n), "m": np.array(m)} for n, m in counts)
    )


OTHERWISE = {
    "at a position": "sum = Add(x, f) s_next = SequenceInsert(s, sum, zero)",
    "two": "sum = Add(x, f) more = SequenceInsert(s, sum) s_next = SequenceInsert(more, x)",
    "none": "s_next = Identity(s)",
    "of its length": """length = SequenceLength(s)
        f_length = Cast<to=1>(length)
        sum = Add(x, f_length)
        s_next = SequenceInsert(s, sum)""",
    "of its last": "end = SequenceAt(s, back) sum = Add(end, f) s_next = SequenceInsert(s, sum)",
    "less": "sum = Add(x, f) less = SequenceErase(s) s_next = SequenceInsert(less, sum)",
    "unequal": """rows = Unsqueeze(i, zeros)
        part = Slice(x, zeros, rows)
        s_next = SequenceInsert(s, part)""",
}


@pytest.mark.parametrize("nodes", OTHERWISE.values(), ids=OTHERWISE)
def test_a_loop_changes_a_sequence_otherwise(widest: CpuBackend, nodes: str) -> None:
    """Its iterations become nodes: one model for each number of them."""
    model = parsed(f"""(float[n, 3] x, int64 n) => (float[k, 3] out)
            <int64 back = {{-1}}, int64 zero = {{0}}, int64[1] zeros = {{0}}> {{
        first = SequenceConstruct(x)
        last = Loop(n, "", first) <body = {appending(nodes)}>
        out = ConcatFromSequence<axis=0>(last)
    }}""")
    expect_agreement(model, *({"x": floats(4, 3), "n": np.array(n)} for n in (3, 0, 6)))


@pytest.mark.parametrize("before", ["x, y", "y"])
def test_a_loop_appends_to_a_sequence_of_other_shapes(widest: CpuBackend, before: str) -> None:
    model = parsed(f"""(float[n, 3] x, float[m, 3] y, int64 n) => (float[k, 3] out) {{
        first = SequenceConstruct({before})
        last = Loop(n, "", first) <body = {PLAIN}>
        out = ConcatFromSequence<axis=0>(last)
    }}""")
    expect_agreement(model, *({**given, "n": np.array(4)} for given in feeds(2, 5)))


def test_bags_are_summed_in_a_loop(widest: CpuBackend) -> None:
    """How torch's exporter writes EmbeddingBag: iterations slice rows, some of them none, and
    append their sum or zeros to a sequence. Any number of bags is one model."""
    model = parsed("""(float[n, 3] x, int64[k] offsets) => (float[b, 3] out)
            <float[1, 3] zeros = {0, 0, 0}, int64[1] along = {0}, int64[1] minus = {-1},
             int64[1] one = {1}, int64 step = {1}, int64 start = {0}> {
        size = Size(offsets)
        bags = Sub(size, step)
        first_s = SequenceEmpty()
        some = Less(start, bags)
        last, at_end = Loop("", some, first_s, start) <body = body
                (int64 i, bool go, seq(float[]) s, int64 at)
                => (bool more, seq(float[]) s_next, int64 at_next) {
            first = Reshape(at, minus)
            second = Add(first, one)
            third = Add(second, one)
            begin = Slice(offsets, first, second)
            end = Slice(offsets, second, third)
            rows = Slice(x, begin, end)
            none = Equal(begin, end)
            bag = If(none) <
                    then_branch = then () => (float[1, 3] empty) { empty = Identity(zeros) },
                    else_branch = else () => (float[1, 3] total) { total = ReduceSum(rows, along) }>
            s_next = SequenceInsert(s, bag)
            at_next = Add(at, step)
            more = Less(at_next, bags)
        }>
        out = ConcatFromSequence<axis=0>(last)
    }""")
    offsets = ([0, 4, 4, 9, 10], [0, 3], [0, 0, 1, 20, 20, 20, 21])
    given = ({"x": floats(o[-1], 3), "offsets": np.array(o)} for o in offsets)
    assert not isinstance(expect_agreement(model, *given), SpecializedModel)


def test_optionals(widest: CpuBackend) -> None:
    model = parsed("""(float[n, 3] x) => (float[n, 3] out, bool there, bool not_there) {
        some = Optional(x)
        there = OptionalHasElement(some)
        again = OptionalGetElement(some)
        out = Neg(again)
        none = Optional<type = float[2]>()
        not_there = OptionalHasElement(none)
    }""")
    expect_agreement(model, {"x": floats(2, 3)})
