"""Files that compute extents from extents, as exporters write it."""

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed

from ftuner.errors import ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ops.pointwise import MAX_BROADCAST
from ftuner.inference import load
from ftuner.runtime.specialization import SpecializedModel

onnxruntime = pytest.importorskip("onnxruntime")


def model_of(nodes: str, outputs: str, **constants: Any) -> bytes:
    """A model of float32 `x` with the axes n and m, and float32 outputs of some ranks."""
    text = f"(float[n, m] x) => ({outputs}) {{ {nodes} }}"
    return parsed(text, 17, **constants).SerializeToString()


COUNT = """
    count = Shape<start=1, end=2>(x)
    room = Add(count, less)
    windows = Div(room, stride)
"""
"""(m + less) / stride."""


def agrees(data: bytes, *shapes: tuple[int, int]) -> None:
    model = load(data)
    assert not isinstance(model, SpecializedModel)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for shape in shapes:
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        for own, wanted in zip(model.run({"x": x}), peer.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(own, wanted)


@pytest.mark.parametrize(("less", "stride"), [(-3, 2), (-7, 4), (-1, 4)])
def test_quotients_of_windows_are_extents(less: int, stride: int) -> None:
    """A dividend that may be below zero: no call waits for a model of its own."""
    nodes = f"""{COUNT}
        extent = Add(windows, one)
        zeros = ConstantOfShape(extent)
        part = Slice(x, zero, extent, one)
        y = Add(zeros, part)
    """
    data = model_of(nodes, "float[?, ?] y", less=[less], stride=[stride], one=[1], zero=[0])
    agrees(data, *((2, m) for m in range(max(-less, 1), 20)))
    if less < -1:
        with pytest.raises(ShapeError, match="a division of extents"):
            load(data).run({"x": np.zeros((2, -less - 1), np.float32)})


def test_quotients_that_are_data_round_towards_zero() -> None:
    data = model_of(f"{COUNT} y = Cast<to=1>(windows)", "float[?] y", less=[-5], stride=[2])
    agrees(data, *((1, m) for m in range(12)))


def test_negated_extents_are_divided_towards_zero() -> None:
    """-(-m // 3), as Python rounds up, is -(-m / 3) in ONNX, which rounds down."""
    nodes = """
        count = Shape<start=1, end=2>(x)
        below = Neg(count)
        quotient = Div(below, stride)
        extent = Neg(quotient)
        y = ConstantOfShape(extent)
    """
    data = model_of(nodes, "float[?] y", stride=[3])
    agrees(data, *((1, m) for m in range(10)))


@pytest.mark.parametrize("first", [0.5, 0.0, -1.25, 2.0])
def test_ranges_of_floats_to_an_extent(first: float) -> None:
    nodes = f"""{COUNT}
        scalar = Squeeze(windows)
        limit = Cast<to=1>(scalar)
        y = Range(first, limit, step)
    """
    numbers = {"first": np.float32(first), "step": np.float32(1)}
    data = model_of(nodes, "float[?] y", less=[0], stride=[2], **numbers)
    agrees(data, *((1, m) for m in range(9)))


@pytest.mark.parametrize("step", [-1, -2, -3])
@pytest.mark.parametrize("less", [0, -1])
def test_ranges_of_floats_between_extents(less: int, step: int) -> None:
    """The distances of positions, as a Conformer counts them: from t - 1 down to 1 - t."""
    nodes = f"""{COUNT}
        scalar = Squeeze(windows)
        t = Cast<to=1>(scalar)
        first = Sub(t, one)
        limit = Neg(t)
        y = Range(first, limit, step)
    """
    numbers = {"one": np.float32(1), "step": np.float32(step)}
    data = model_of(nodes, "float[?] y", less=[less], stride=[2], **numbers)
    agrees(data, *((1, m) for m in range(-less, 9)))


def test_padding_that_is_computed_in_floats() -> None:
    """As much as TensorFlow pads before a window of 3 and stride 2: max(2 * (ceil(m / 2) - 1) + 3 -
    m, 0), half of it at the beginning."""
    nodes = """
        shape = Shape<start=1, end=2>(x)
        scalar = Squeeze(shape)
        t = Cast<to=1>(scalar)
        halves = Div(t, two)
        windows = Ceil(halves)
        steps = Sub(windows, one)
        far = Mul(steps, two)
        end_of_last = Add(far, three)
        missing = Sub(end_of_last, t)
        padding = Max(missing, zero)
        half = Div(padding, two)
        low = Cast<to=7>(half)
        begin = Cast<to=1>(low)
        end = Sub(padding, begin)
        begins = Unsqueeze(begin, axis)
        ends = Unsqueeze(end, axis)
        widths = Concat<axis=0>(none, begins, none, ends)
        pads = Cast<to=7>(widths)
        y = Pad(x, pads)
    """
    numbers = {"zero": 0, "one": 1, "two": 2, "three": 3, "none": [0]}
    floats = {name: np.float32(number) for name, number in numbers.items()}
    data = model_of(nodes, "float[?, ?] y", axis=[0], **floats)
    agrees(data, *((2, m) for m in range(1, 12)))


@pytest.mark.parametrize("language", [0.0, 1.0, 2.0])
def test_rows_are_chosen_by_a_number_that_all_have(language: float) -> None:
    """Rows of x of either language, changed and written back, as torch exports
    `y[of == 1] = f(x[of == 1])`: all rows, or none, and no call waits for a model of its own."""
    nodes = """
        shape = Shape(x)
        rows = Shape<end=1>(x)
        ones = Expand(one, rows)
        of = Mul(ones, language)
        y_0 = Expand(zero, shape)
    """
    for i, function in enumerate(("Abs", "Neg")):
        nodes += f"""
            holds_{i} = Equal(of, is_{i})
            row_{i} = NonZero(holds_{i})
            at_{i} = Transpose<perm=[1, 0]>(row_{i})
            rows_{i} = GatherND(x, at_{i})
            found_{i} = {function}(rows_{i})
            number_{i} = Cast<to=7>(holds_{i})
            count_{i} = ReduceSum(number_{i})
            width_{i} = Shape<start=1>(x)
            extents_{i} = Concat<axis=0>(count_{i}, width_{i})
            whole_{i} = Expand(found_{i}, extents_{i})
            updates_{i} = Reshape(whole_{i}, flat)
            column_{i} = Unsqueeze(holds_{i}, last)
            everywhere_{i} = Expand(column_{i}, shape)
            element_{i} = NonZero(everywhere_{i})
            to_{i} = Transpose<perm=[1, 0]>(element_{i})
            y_{i + 1} = ScatterND(y_{i}, to_{i}, updates_{i})
        """
    numbers = {"one": 1, "zero": 0, "language": language, "is_0": 1, "is_1": 2}
    floats = {name: np.float32(number) for name, number in numbers.items()}
    data = model_of(f"{nodes} y = Identity(y_2)", "float[?, ?] y", flat=[-1], last=[1], **floats)
    agrees(data, (3, 4), (1, 5), (2, 1), (4, 4))


@pytest.mark.parametrize("narrow", [False, True])
def test_rows_are_chosen_by_a_condition(narrow: bool) -> None:
    """`y[holds] = exp(x[holds])`: room is made for as many rows as the condition holds for."""
    nodes = f"""
        sums = ReduceSum<keepdims=0>(x, last)
        holds = Greater(sums, zero)
        row = NonZero(holds)
        at = Transpose<perm=[1, 0]>(row)
        rows = GatherND(x, at)
        found = Abs(rows)
        flat_holds = Reshape(holds, flat)
        number = Cast<to={6 if narrow else 7}>(flat_holds)
        sum = ReduceSum(number)
        count = Cast<to=7>(sum)
        width = Shape<start=1>(x)
        whole = Concat<axis=0>(count, width)
        updates = Expand(found, whole)
        elements = Reshape(updates, flat)
        shape = Shape(x)
        column = Unsqueeze(holds, last)
        everywhere = Expand(column, shape)
        element = NonZero(everywhere)
        to = Transpose<perm=[1, 0]>(element)
        y = ScatterND(x, to, elements)
    """
    data = model_of(nodes, "float[?, ?] y", flat=[-1], last=[1], zero=np.float32(0))
    agrees(data, *((n, m) for n in (0, 1, 2, 5) for m in (1, 4)))


def test_sums_that_are_no_numbers_of_elements_are_data() -> None:
    """Along one axis, and of integers."""
    nodes = """
        holds = Greater(x, zero)
        ones = Cast<to=7>(holds)
        sums = ReduceSum<keepdims=0>(ones, first)
        twos = Add(ones, ones)
        sum = ReduceSum(twos)
        y = Cast<to=1>(sums)
        z = Cast<to=1>(sum)
    """
    data = model_of(nodes, "float[?] y, float[?, ?] z", zero=np.float32(0), first=[0])
    agrees(data, (3, 4), (1, 2))


def split_model(count: int) -> bytes:
    """Rows of x by as many numbers as there are: how many of its first row are 0, 1, ..."""
    nodes = f"""
        row = Gather<axis=0>(x, zero)
        column = Unsqueeze(row, one)
        is = Equal(column, kinds)
        ones = Cast<to=7>(is)
        counts = ReduceSum<keepdims=0>(ones, zero_axis)
        {", ".join(f"y{i}" for i in range(count))} = Split<axis=1>(x, counts)
    """
    outputs = ", ".join(f"float[?, ?] y{i}" for i in range(count))
    kinds = np.arange(count, dtype=np.float32)[None]
    return model_of(nodes, outputs, zero=0, one=[1], kinds=kinds, zero_axis=[0])


@pytest.mark.parametrize("count", [1, 3])
def test_pieces_of_a_split_that_data_decides(count: int) -> None:
    data = split_model(count)
    model, peer = load(data), onnxruntime.InferenceSession(data)
    assert not isinstance(model, SpecializedModel)
    for seed, m in enumerate((1, 2, 5, 9)):
        x = np.random.default_rng(seed).integers(0, count, (2, m)).astype(np.float32)
        for own, wanted in zip(model.run({"x": x}), peer.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(own, wanted)
    with pytest.raises(ShapeError, match=r"Split node .* pieces of"):
        model.run({"x": np.full((2, 3), 7, np.float32)})


def test_pieces_below_zero_are_refused() -> None:
    nodes = """
        numbers = Cast<to=7>(x)
        sizes = Reshape(numbers, two)
        y, z = Split<axis=0>(range, sizes)
    """
    data = model_of(nodes, "float[?] y, float[?] z", two=[2], range=np.arange(3, dtype=np.float32))
    model = load(data)
    own = model.run({"x": np.array([[1, 2]], np.float32)})
    assert [y.tolist() for y in own] == [[0], [1, 2]]
    with pytest.raises(ShapeError, match=r"extents of \[-1, 4\]"):
        model.run({"x": np.array([[-1, 4]], np.float32)})


def test_unknown_extents_are_broadcast_up_to_a_number() -> None:
    for count, refused in ((MAX_BROADCAST, False), (MAX_BROADCAST + 1, True)):
        inputs = ", ".join(f"float[N{i}] x{i}" for i in range(count))
        names = ", ".join(f"x{i}" for i in range(count))
        model = parsed(f"({inputs}) => (y) {{ y = Sum({names}) }}")
        if refused:
            with pytest.raises(ShapeError, match="give the axes that agree one name"):
                import_model(model)
        else:
            import_model(model)
