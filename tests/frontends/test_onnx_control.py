"""Control flow against ONNX Runtime: loops, scans and branches on data."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.control_models import expect_agreement, floats, growing
from tests.frontends.onnx_models import parsed

from ftuner.errors import GraphError, IndexRangeError, IterationLimitError, ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.inference import Model, load
from ftuner.runtime.chain import MAX_TRIPS_VARIABLE
from ftuner.runtime.cpu.backend import CpuBackend


def test_carried_extents_grow(widest: CpuBackend) -> None:
    feeds = [
        {"n": np.array(n), "first": floats(a, 3), "w": floats(b, 3)}
        for n, a, b in ((5, 2, 1), (0, 2, 1), (1, 0, 0), (3, 0, 2), (20, 1, 4), (-1, 1, 1))
    ]
    expect_agreement(growing(), *feeds)


def test_a_body_is_compiled_once(widest: CpuBackend, compiled: list[Any]) -> None:
    model = load(growing())
    count = len(compiled)
    assert count <= 3
    for n in (1, 7, 30):
        model.run({"n": np.array(n), "first": floats(2, 3), "w": floats(1, 3)})
    assert len(compiled) == count


def exchanging(conditional: bool) -> Any:
    """A loop that exchanges two carried values; each iteration gives an element and a look-up."""
    text = """(int64 count, float[n, 3] x, float[n, 3] y, float[m, 2] table)
            => (float[] a_last, float[] b_last, float[] all, float[] rows) {
        a_last, b_last, all, rows = Loop(count, "", x, y) <body = body
                (int64 i, bool go, float[n, 3] a, float[n, 3] b)
                => (bool small, float[] a_next, float[] b_next, float[] a_next, float[] row)
                <float one = {1}, float far = {80}> {
            a_next = Add(b, one)
            b_next = Identity(a)
            row = Gather(table, i)
            most = ReduceMax<keepdims=0>(a)
            small = Less(most, far)
        }>
    }"""
    return parsed(text if conditional else text.replace("Less(most, far)", "Identity(go)"))


@pytest.mark.parametrize("conditional", [False, True])
def test_carried_values_that_keep_their_extents(widest: CpuBackend, conditional: bool) -> None:
    """Iterations write over what earlier ones have read, and never what they were given."""
    feeds = [
        {"count": np.array(n), "x": floats(rows, 3), "y": floats(rows, 3), "table": floats(200, 2)}
        for n, rows in ((0, 2), (1, 2), (2, 0), (3, 1), (64, 2), (65, 2), (129, 3), (200, 2))
    ]
    copies = [{name: x.copy() for name, x in given.items()} for given in feeds]
    model = expect_agreement(exchanging(conditional), *feeds)
    for given, copy in zip(feeds, copies, strict=True):
        for name, x in given.items():
            np.testing.assert_array_equal(x, copy[name])
    # Iteration 5 reads beyond the table; a later run is not affected.
    short = {**feeds[-1], "table": floats(5, 2)}
    with pytest.raises(IndexRangeError):
        model.run(short)
    expected = model.run({**short, "count": np.array(5)})
    np.testing.assert_array_equal(expected[3], short["table"])


def carrying_what_stays() -> Any:
    """A loop as TensorFlow's exporter writes it: it carries a weight, a step and an input beside
    the state that it changes."""
    text = """(int64 trips, float[b, 4] x, float[n] y)
            => (float[b, 4] x_last, float[4, 4] w_last, float[n] y_last, int64[1] s_last)
            <int64[1] two = {2}, int64[1] zeros = {0}, int64[1] far = {1099511627776}> {
        x_last, w_last, y_last, s_last = Loop(trips, "", x, w, y, two) <body = body
                (int64 i, bool go, float[b, 4] state, float[4, 4] weight, float[n] rows,
                 int64[1] step)
                => (bool go, float[b, 4] state_next, float[4, 4] weight, float[n] rows_next,
                    int64[1] step) {
            some = Slice(rows, zeros, far, zeros, step)
            sum = ReduceSum<keepdims=0>(some)
            product = MatMul(state, weight)
            state_next = Add(product, sum)
            same = Identity(rows)
            rows_next = Identity(same)
        }>
    }"""
    return parsed(text, w=floats(4, 4) / 4)


def test_what_a_loop_carries_unchanged_is_read_around_it(
    widest: CpuBackend, compiled: list[Any]
) -> None:
    """A constant weight is packed, and a constant step is no number that comes at run time."""
    feeds = [
        {"trips": np.array(n), "x": floats(b, 4), "y": floats(m)}
        for n, b, m in ((3, 2, 7), (0, 1, 2), (11, 5, 1))
    ]
    expect_agreement(carrying_what_stays(), *feeds)
    (loop,) = (n for n in import_model(carrying_what_stays()).graph.nodes if n.op == "loop")
    (product,) = (n for n in loop.attributes["body"].nodes if n.op == "matmul")
    assert product.inputs[1].constant is not None
    model = load(carrying_what_stays())
    count = len(compiled)
    for given in feeds:
        model.run(given)
    assert len(compiled) == count


def test_a_loop_that_changes_nothing(widest: CpuBackend) -> None:
    model = parsed("""(int64 trips, float[n] first) => (float[n] last) {
        last = Loop(trips, "", first)
            <body = body (int64 i, bool go, float[n] x) => (bool go, float[n] x) {
        }>
    }""")
    expect_agreement(model, *({"trips": np.array(n), "first": floats(3)} for n in (0, 5)))


def while_model() -> Any:
    """Halves x until its sum is below a limit; counts how often."""
    return parsed("""(bool begin, float[n] first, float limit) => (float[n] last, int64 count_last)
            <int64 zero = {0}> {
        last, count_last = Loop("", begin, first, zero) <body = body
                (int64 i, bool go, float[n] x, int64 count)
                => (bool go_next, float[n] x_next, int64 count_next) <float half = {0.5}> {
            x_next = Mul(x, half)
            sum = ReduceSum<keepdims=0>(x_next)
            go_next = Less(limit, sum)
            count_next = Identity(i)
        }>
    }""")


def test_a_condition_ends_a_loop(widest: CpuBackend) -> None:
    feeds = [
        {"begin": np.array(begin), "first": np.abs(floats(n)), "limit": np.array(0.01, np.float32)}
        for begin, n in ((True, 5), (False, 5), (True, 0), (True, 100))
    ]
    nan = {"begin": np.array(True), "first": np.array([np.nan], np.float32), "limit": np.float32(1)}
    nan["limit"] = np.ones((), np.float32)
    expect_agreement(while_model(), *feeds, nan)


def test_endless_loops_are_stopped(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_TRIPS_VARIABLE, "50")
    model = load(while_model())
    feeds = {"begin": np.array(True), "limit": np.array(-1, np.float32)}
    with pytest.raises(IterationLimitError, match="50 iterations"):
        model.run({**feeds, "first": np.ones(3, np.float32)})


def test_loops_within_loops_read_values_around_them(widest: CpuBackend) -> None:
    """The inner one runs i + 1 times, and reads the input and what the outer one carries."""
    model = parsed("""(int64 n, float[m] s0, float[r, k] w, float[k, m] x)
            => (float[m] after, float[t, m] all) <int64 one = {1}> {
        last, all = Loop(n, "", s0) <body = outer (int64 i, bool go, float[m] s)
                => (bool go, float[m] s_next, float[m] t) {
            trips = Add(i, one)
            s_next = Loop(trips, "", s) <body = inner (int64 j, bool on, float[m] c)
                    => (bool on, float[m] c_next) {
                row = Gather<axis=0>(w, j)
                y = MatMul(row, x)
                c_next = Add(c, y)
            }>
            t = Tanh(s_next)
        }>
        after = Exp(last)
    }""")
    feeds = [
        {"n": np.array(n), "s0": floats(m), "w": floats(9, k), "x": floats(k, m) / 50}
        for n, k, m in ((3, 4, 5), (9, 1, 2), (0, 2, 2), (2, 0, 3))
    ]
    expect_agreement(model, *feeds)


def test_extents_that_data_tells_within_a_loop(widest: CpuBackend) -> None:
    model = parsed("""(int64 n, float[m] x, float step) => (float[q] last, int64[k] counts)
            <int64[1] first_axis = {0}> {
        last, counts = Loop(n, "", x) <body = body (int64 i, bool go, float[p] c)
                => (bool go, float[p] c_next, int64 count) <float zero = {0}> {
            chosen = Greater(c, zero)
            at = NonZero(chosen)
            where = Squeeze(at, first_axis)
            kept = Gather<axis=0>(c, where)
            c_next = Sub(kept, step)
            count = Size(c_next)
        }>
    }""")
    feeds = [
        {"n": np.array(n), "x": floats(m), "step": np.array(0.3, np.float32)}
        for n, m in ((3, 40), (12, 30), (0, 3), (2, 0))
    ]
    expect_agreement(model, *feeds)


@pytest.mark.parametrize("trips", [3, 40])
def test_shapes_around_a_loop_are_known_within(widest: CpuBackend, trips: int) -> None:
    """A body reshapes by the shape of the input."""
    text = """(float[a, b] x) => (float[q] end, float[k, a] sums)
            <int64[1] all = {-1}, int64[1] last = {1}> {
        shape = Shape(x)
        flat = Reshape(x, all)
        end, sums = Loop(n, "", flat) <body = body (int64 i, bool go, float[p] c)
                => (bool go, float[p] c_next, float[a] sums) {
            matrix = Reshape(c, shape)
            sums = ReduceSum<keepdims=0>(matrix, last)
            i_float = Cast<to=1>(i)
            c_next = Add(c, i_float)
        }>
    }"""
    model = parsed(text, n=np.int64(trips))
    expect_agreement(model, *({"x": floats(a, b)} for a, b in ((2, 3), (5, 1), (0, 4))))


def test_a_branch_on_data_within_a_loop(widest: CpuBackend) -> None:
    model = parsed("""(int64 n, float[m] x, float[m] w) => (float[m] last, float[k] sums) {
        last, sums = Loop(n, "", x) <body = body (int64 i, bool go, float[m] c)
                => (bool go, float[m] c_next, float sum) <float zero = {0}> {
            sum = ReduceSum<keepdims=0>(c)
            low = Less(sum, zero)
            c_next = If(low) <then_branch = then () => (float[m] a) { a = Mul(c, c) },
                              else_branch = else () => (float[m] b) { b = Add(c, w) }>
        }>
    }""")
    loaded = expect_agreement(
        model,
        *({"n": np.array(n), "x": -(floats(5) ** 2), "w": -np.ones(5, np.float32)} for n in (3, 5)),
    )
    assert type(loaded) is Model


SCANS = {
    "plain": {},
    "reverse": {"scan_input_directions": [1, 0], "scan_output_directions": [1]},
    "axes": {"scan_input_axes": [1, -1], "scan_output_axes": [1]},
    "last axis": {"scan_input_directions": [0, 1], "scan_output_axes": [-1]},
}


@pytest.mark.parametrize("attributes", SCANS.values(), ids=SCANS)
def test_scans(widest: CpuBackend, attributes: dict[str, Any]) -> None:
    axes = attributes.get("scan_input_axes", [0, 0])
    xs, zs = ("tk" if axes[0] == 0 else "kt"), ("tm" if axes[1] == 0 else "mt")
    model = parsed(f"""(float[m] h0, float c0, float[{",".join(xs)}] xs, float[{",".join(zs)}] zs,
                        float[k, m] w) => (float[m] h_last, float c_last, float[p, q] all) {{
        h_last, c_last, all = Scan(h0, c0, xs, zs) <num_scan_inputs = 2, body = body
                (float[m] h, float count, float[k] x, float[m] z)
                => (float[m] h_next, float count_next, float[m] out) <float one = {{1}}> {{
            y = MatMul(x, w)
            sum = Add(y, h)
            h_next = Tanh(sum)
            out = Mul(h_next, z)
            count_next = Add(count, one)
        }}>
    }}""")
    model.graph.node[0].attribute.extend(helper.make_attribute(*a) for a in attributes.items())

    def given(t: int, k: int, m: int) -> dict[str, Any]:
        sides = {"t": t, "k": k, "m": m}
        x, z = (floats(*(sides[n] for n in names)) for names in (xs, zs))
        zero = np.zeros((), np.float32)
        return {"h0": floats(m), "c0": zero, "xs": x, "zs": z, "w": floats(k, m)}

    expect_agreement(model, given(7, 3, 4), given(1, 1, 1), given(30, 2, 5))


@pytest.mark.parametrize("opset", [8, 9])
def test_a_scan_of_a_scalar(opset: int) -> None:
    body = "<num_scan_inputs = 1, body = body (float s, float x) => (float y, float z)"
    empty = '"", ' if opset == 8 else ""
    kind = "float[b]" if opset == 8 else "float"
    model = parsed(f"""({kind} h, {kind} xs) => (float[n] all, float[n] last) {{
        last, all = Scan({empty}h, xs) {body} {{ y = Add(s, x)
            z = Identity(y) }}>
    }}""", opset)  # fmt: skip
    with pytest.raises(ShapeError, match=r"^Scan node that gives 'last': axis 0 of a tensor of 0"):
        import_model(model)


def changing(node: str, dtype: str) -> Any:
    return parsed(f"""(int64 n, float[m] x) => ({dtype}[] last) <int64[1] axis = {{0}}> {{
        last = Loop(n, "", x)
            <body = body (int64 i, bool go, float[] c) => (bool go, {dtype}[] c_next) {{
            c_next = {node}
        }}>
    }}""")


@pytest.mark.parametrize(
    "model",
    [
        changing("Cast<to=7>(c)", "int64"),
        changing("Unsqueeze(c, axis)", "float"),
    ],
    ids=["dtype", "rank"],
)
def test_a_carried_value_that_changes_its_type(model: Any) -> None:
    with pytest.raises(GraphError, match=r"Loop node .* carried value 2 is float32\[m\] before"):
        import_model(model)


def beginning_with_scalars(first: Any = True) -> Any:
    """A loop as PaddlePaddle exports them: what is carried begins as a scalar, a flag has an axis
    or none, and the rows up to the last iteration are left."""
    text = """(float[n, 4] given) => (float[m] y, float[k] all)
            <int64[1] z = {0}, int64[1] one = {1}, float far = {50}, float zero = {0},
             bool no = {0}, int64 none = {0}, int64 trips = {9}> {
        x_last, rows_last, out_last, flag_last, count_last, all = Loop
                (trips, first, given, empty, zero, no, none) <body = body
                (int64 i, bool go, float[] x, float[] rows, float[] out, bool[] flag, int64[] count)
                => (bool[] go_next, float[] x_next, float[] rows_next, float[] out_next,
                    bool[] flag_next, int64[] count_next, float most) {
            x_next = MatMul(x, w)
            most = ReduceMax<keepdims=0>(x_next)
            at = Reshape(i, one)
            new = Reshape(most, one)
            rows_next = ScatterElements(rows, at, new)
            out_next = Identity(rows_next)
            is_far = Greater(most, far)
            flag_now = If(is_far) <then_branch = done () => (bool[] yes) <bool yes = {1}> {},
                    else_branch = going () => (bool[] kept) {
                as_before = Cast<to=7>(flag)
                sum = Add(as_before, z)
                kept = Cast<to=9>(sum)
            }>
            number = Cast<to=7>(flag_now)
            numbers = Add(number, z)
            flag_next = Cast<to=9>(numbers)
            go_next = Not(flag_next)
            count_next = Add(at, one)
        }>
        y = Slice(out_last, z, count_last, z)
    }"""
    return parsed(text, w=np.full((4, 4), 0.4, "f"), empty=np.zeros(9, "f"), first=first)


def test_the_first_iteration_may_change_types(widest: CpuBackend, compiled: list[Any]) -> None:
    model = expect_agreement(
        beginning_with_scalars(),
        *({"given": np.full((n, 4), x, np.float32)} for n, x in ((2, 1), (3, 40), (1, 0), (5, 9))),
    )
    count = len(compiled)
    for n, x in ((4, 2), (6, 30)):
        model.run({"given": np.full((n, 4), x, np.float32)})
    assert len(compiled) == count
    # Of no iteration there would be other types.
    with pytest.raises(GraphError, match="carried value"):
        import_model(beginning_with_scalars(first=False))


def test_extents_that_do_not_fit(widest: CpuBackend) -> None:
    text = """(int64 n, float[m] x) => (float[p] last, float[k, q] sums) {
        last, sums = Loop(n, "", x) <body = body (int64 i, bool go, float[p] c)
                => (bool go, float[p] c_next, float[q] sum) {
            c_next = Concat<axis=0>(c, c)
            sum = Add(c, x)
        }>
    }"""
    model = load(parsed(text))
    model.run({"n": np.array(1), "x": floats(3)})
    with pytest.raises(ShapeError, match="Add node"):
        model.run({"n": np.array(2), "x": floats(3)})
