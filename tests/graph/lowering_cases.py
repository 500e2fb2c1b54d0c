"""Graphs and the steps that they become, told by their titles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.graph.graphs import B, Maker, S, T

from ftuner.core.dtype import INT64
from ftuner.graph.ir import Value

Body = Callable[[Maker], "Value | Sequence[Value]"]


def x_of(g: Maker) -> Value:
    return g.given("x", B, S, 8)


# Nests.


def pointwise(g: Maker) -> Value:
    x = x_of(g)
    return g.add("exp", g.add("multiply", g.add("add", x, g.weight(8)), g.number(2)))


def prologue_of_a_reduction(g: Maker) -> Value:
    return g.add("reduce", g.add("exp", x_of(g)), kind="sum", axes=(2,))


def epilogue_of_a_reduction(g: Maker) -> Value:
    total = g.add("reduce", x_of(g), kind="sum", axes=(2,))
    return g.add("sqrt", g.add("absolute", total))


def norm_of_a_sum(g: Maker) -> Value:
    y = g.add("add", x_of(g), g.given("y", B, S, 8))
    return g.add("norm", y, g.weight(8), g.weight(8), axis=2, epsilon=1e-5, rms=False)


def norm_of_a_sum_that_is_read_again(g: Maker) -> list[Value]:
    y = g.add("add", x_of(g), g.given("y", B, S, 8))
    return [g.add("norm", y, axis=2, epsilon=1e-5, rms=False), g.add("exp", y)]


def norm_of_something_dear(g: Maker) -> Value:
    """It has several stages: what is dear is computed once."""
    return g.add("norm", g.add("tanh", x_of(g)), axis=2, epsilon=1e-5, rms=False)


def softmax_and_after(g: Maker) -> Value:
    y = g.add("softmax", x_of(g), axis=2, log=False)
    return g.add("multiply", y, g.weight(8))


def softmax_of_columns_and_after(g: Maker) -> Value:
    y = g.add("softmax", g.given("x", B, S, T), axis=1, log=False)
    return g.add("multiply", y, g.given("y", S, T))


def dear_value_used_twice(g: Maker) -> list[Value]:
    y = g.add("exp", x_of(g))
    return [g.add("add", y, g.number(1)), g.add("multiply", y, g.number(2))]


def cheap_value_used_twice(g: Maker) -> list[Value]:
    y = g.add("add", x_of(g), g.number(1))
    return [g.add("negative", y), g.add("absolute", y)]


def value_used_twice_by_one_node(g: Maker) -> Value:
    y = g.add("exp", x_of(g))
    return g.add("multiply", y, y)


def scan(g: Maker) -> Value:
    y = g.add("cumulative_sum", g.add("negative", x_of(g)), axis=1, exclusive=False, reverse=True)
    return g.add("add", y, g.number(1))


def scan_forwards(g: Maker) -> Value:
    y = g.add("cumulative_sum", x_of(g), axis=1, exclusive=True, reverse=False)
    return g.add("multiply", y, g.weight(8))


def resampled_and_turned(g: Maker) -> Value:
    """Vectors lie along the channels of the rows that are looked up."""
    tables = [g.given("at", 2, T, dtype=INT64), g.given("w", 2, T)]
    y = g.add("resample", x_of(g), *tables, axes=(1,))
    return g.add("transpose", y, perm=(0, 2, 1))


def resampled_lines_turned(g: Maker) -> Value:
    """Each element is looked up along the last axis: the order of axes does not matter."""
    tables = [g.given("at", 2, T, dtype=INT64), g.given("w", 2, T)]
    y = g.add("resample", x_of(g), *tables, axes=(2,))
    return g.add("transpose", y, perm=(0, 2, 1))


def gathered(g: Maker) -> Value:
    rows = g.add("gather", g.weight(3, 8), g.given("at", B, S, dtype=INT64), axis=0)
    return g.add("add", rows, g.weight(8))


def scattered(g: Maker) -> Value:
    at = g.given("at", 2, T, dtype=INT64)
    return g.add("scatter_elements", g.add("exp", g.given("x", 3, T)), at, g.given("y", 2, T),
                 axis=0, kind="add")  # fmt: skip


def scattered_into_an_input(g: Maker) -> Value:
    return g.add("scatter_elements", g.given("x", 3, T), g.given("at", 2, T, dtype=INT64),
                 g.add("negative", g.given("y", 2, T)), axis=0, kind="none")  # fmt: skip


# Views.


def reshaped_and_turned(g: Maker) -> Value:
    y = g.add("reshape", g.add("transpose", g.given("x", B, S, 2, 4), perm=(0, 2, 1, 3)),
              shape=(B, 2, S * 4))  # fmt: skip
    return g.add("negative", y)


def heads_of_a_slice(g: Maker) -> Value:
    part = g.add("slice", g.given("x", B, S, 24), starts=(0, 0, 8), steps=(1, 1, 1),
                 shape=(B, S, 8))  # fmt: skip
    return g.add("exp", g.heads(part, 2, (0, 2, 1, 3)))


def ones_come_and_go(g: Maker) -> Value:
    y = g.add("reshape", g.add("negative", g.given("x", B, S)), shape=(B, 1, 1, S))
    return g.add("add", y, g.given("y", B, 2, S, S))


def view_as_output(g: Maker) -> Value:
    return g.add("transpose", g.given("x", B, S, T), perm=(2, 0, 1))


def concat_in_place(g: Maker) -> Value:
    return g.add("concat", g.add("exp", g.given("x", B, S)), g.given("y", B, T),
                 g.add("negative", g.given("z", B, S)), axis=1)  # fmt: skip


def concat_of_one_value(g: Maker) -> Value:
    y = g.add("exp", g.given("x", B, S))
    return g.add("concat", y, y, y, axis=0)


def concat_in_the_middle(g: Maker) -> Value:
    whole = g.add("concat", g.add("exp", g.given("x", B, S)), g.given("y", B, T), axis=1)
    return g.add("reduce", whole, kind="sum", axes=(1,))


def outputs_that_are_no_results(g: Maker) -> list[Value]:
    x = g.given("x", B, S)
    y = g.add("exp", x)
    return [x, g.weight(3), y, y, x]


def output_that_is_read_too(g: Maker) -> list[Value]:
    y = g.add("exp", g.given("x", B, S))
    return [y, g.add("reduce", y, kind="sum", axes=(1,)), g.add("transpose", y, perm=(1, 0))]


def output_in_another_shape(g: Maker) -> Value:
    return g.add("reshape", g.add("exp", g.given("x", B, S, 6)), shape=(B, S * 2, 3))


def output_in_two_shapes(g: Maker) -> list[Value]:
    y = g.add("exp", g.given("x", B, S, 6))
    return [g.add("reshape", y, shape=(B, S * 2, 3)), y]


def best(g: Maker) -> list[Value]:
    x = g.add("negative", g.given("x", B, 9))
    values, positions = g.add_many("top_k", x, axis=1, k=4, largest=True)
    return [g.add("exp", values), positions]


NESTS: tuple[tuple[Body, list[str]], ...] = (
    (pointwise, ["add + multiply + exp"]),
    (prologue_of_a_reduction, ["exp + reduce"]),
    (epilogue_of_a_reduction, ["reduce + absolute + sqrt"]),
    (norm_of_a_sum, ["add + norm"]),
    (norm_of_a_sum_that_is_read_again, ["add", "norm", "exp"]),
    (norm_of_something_dear, ["tanh", "norm"]),
    (softmax_and_after, ["softmax + multiply"]),
    (softmax_of_columns_and_after, ["softmax + multiply"]),
    (dear_value_used_twice, ["exp", "add", "multiply"]),
    (cheap_value_used_twice, ["add + negative", "add + absolute"]),
    (value_used_twice_by_one_node, ["exp", "multiply"]),
    (scan, ["negative + cumulative_sum", "add"]),
    (scan_forwards, ["cumulative_sum + multiply"]),
    (gathered, ["gather + add"]),
    (resampled_and_turned, ["resample", "copy"]),
    (resampled_lines_turned, ["resample + transpose"]),
    (scattered, ["exp", "scatter_elements"]),
    (scattered_into_an_input, ["copy", "negative + scatter_elements"]),
    (reshaped_and_turned, ["copy", "negative"]),
    (heads_of_a_slice, ["exp"]),
    (ones_come_and_go, ["negative + add"]),
    (view_as_output, ["copy"]),
    (concat_in_place, ["exp", "copy", "negative"]),
    (concat_of_one_value, ["exp", "copy", "copy"]),
    (concat_in_the_middle, ["exp", "copy", "reduce"]),
    (outputs_that_are_no_results, ["copy", "copy", "exp", "copy", "copy"]),
    (output_that_is_read_too, ["exp", "reduce", "copy"]),
    (output_in_another_shape, ["exp"]),
    (output_in_two_shapes, ["exp", "copy"]),
    (best, ["negative", "top_k", "exp"]),
)

# Products.


def weight_of(g: Maker) -> Value:
    return g.weight(8, 9)


def product(g: Maker) -> Value:
    return g.add("matmul", x_of(g), weight_of(g))


def bias(g: Maker) -> Value:
    return g.linear(x_of(g), 9)


def bias_and_gelu(g: Maker) -> Value:
    return g.add("gelu", bias(g))


def bias_and_residual(g: Maker) -> Value:
    return g.add("add", g.given("y", B, S, 9), bias(g))


def scale_and_floor(g: Maker) -> Value:
    return g.add("maximum", g.add("multiply", product(g), g.number(0.5)), g.number(0))


def norm_behind(g: Maker) -> Value:
    y = g.linear(x_of(g), 9)
    return g.add("norm", y, g.weight(9), axis=2, epsilon=1e-5, rms=True)


def bias_of_rows(g: Maker) -> Value:
    """It spreads over the product in another way: no epilogue, but a nest of its own."""
    return g.add("add", product(g), g.given("y", B, S, 1))


def broadcast_product(g: Maker) -> Value:
    return g.add("add", g.add("matmul", g.given("x", S, 8), weight_of(g)), g.given("y", B, S, 9))


def product_used_twice(g: Maker) -> list[Value]:
    y = product(g)
    return [g.add("negative", y), g.add("exp", y)]


def prologue_is_written(g: Maker) -> Value:
    return g.add("matmul", g.add("exp", x_of(g)), weight_of(g))


def product_of_inputs(g: Maker) -> Value:
    return g.add("matmul", g.given("x", B, S, 8), g.given("y", B, 8, T))


def product_with_transposed(g: Maker) -> Value:
    other = g.add("transpose", g.given("y", B, T, 8), perm=(0, 2, 1))
    return g.add("matmul", x_of(g), other)


def reversed_operands(g: Maker) -> Value:
    x = g.add("slice", g.given("x", S, 8), starts=(S - 1, 7), steps=(-1, -1), shape=(S, 8))
    y = g.add("slice", g.given("y", 8, T), starts=(7, T - 1), steps=(-1, -1), shape=(8, T))
    return g.add("matmul", x, y)


def broadcast_operands(g: Maker) -> list[Value]:
    x = g.add("broadcast", g.given("x", S, 1), shape=(S, 8))
    y = g.add("broadcast", g.given("y", 1, 9), shape=(8, 9))
    return [g.add("matmul", x, weight_of(g)), g.add("matmul", g.given("z", S, 8), y)]


def products_side_by_side(g: Maker) -> Value:
    x = x_of(g)
    return g.add("concat", g.add("matmul", x, g.weight(8, 3)), g.add("matmul", x, g.weight(8, 4)),
                 axis=2)  # fmt: skip


def turned_batches(g: Maker) -> Value:
    """Rows of a product with batch axes go where the transposition wants them."""
    y = g.add("matmul", g.given("q", B, 2, S, 4), g.given("k", B, 2, 4, 3))
    return g.add("reshape", g.add("transpose", y, perm=(0, 2, 1, 3)), shape=(B, S, 6))


def integers(g: Maker) -> Value:
    return g.add("matmul", g.given("x", S, 3, dtype=INT64), g.given("y", 3, T, dtype=INT64))


def no_steps_of_k(g: Maker) -> Value:
    return g.add("matmul", g.given("x", S, 0), g.given("y", 0, T))


def turned_operand(g: Maker) -> Value:
    return g.add("matmul", g.add("transpose", x_of(g), perm=(1, 0, 2)), weight_of(g))


def last_rows(g: Maker) -> Value:
    """The last token of each sentence."""
    last = g.add("slice", x_of(g), starts=(0, S - 1, 0), steps=(1, 1, 1), shape=(B, 1, 8))
    return g.add("matmul", last, weight_of(g))


def sliced_operand(g: Maker) -> Value:
    part = g.add("slice", g.given("x", B, T, 8), starts=(0, 1, 0), steps=(1, 1, 1),
                 shape=(B, T - 1, 8))  # fmt: skip
    return g.add("matmul", part, weight_of(g))


def turned_result(g: Maker) -> Value:
    return g.add("transpose", product(g), perm=(1, 0, 2))


def products_one_behind_the_other(g: Maker) -> Value:
    x = x_of(g)
    return g.add("concat", g.add("matmul", x, weight_of(g)), g.add("matmul", x, weight_of(g)),
                 axis=1)  # fmt: skip


def turned_residual(g: Maker) -> Value:
    return g.add("add", product(g), g.add("transpose", g.given("y", S, B, 9), perm=(1, 0, 2)))


def sliced_residual(g: Maker) -> Value:
    part = g.add("slice", g.given("y", B, 13, 9), starts=(0, 1, 0), steps=(1, 2, 1),
                 shape=(B, 6, 9))  # fmt: skip
    return g.add("add", g.linear(g.given("x", B, 6, 8), 9), part)


def rows_of_a_map(g: Maker) -> Value:
    """The rows are merged: the epilogue goes on."""
    y = g.linear(g.given("x", B, S, 3, 8), 8)
    rows = g.add("gelu", g.add("reshape", y, shape=(B, S * 3, 8)))
    return g.add("add", rows, g.given("residual", B, S * 3, 8))


def rows_of_a_map_in_a_concat(g: Maker) -> Value:
    y = g.linear(g.given("x", B, S, 3, 8), 8)
    rows = g.add("tanh", g.add("reshape", y, shape=(B, 1, S * 3, 8)))
    return g.add("concat", rows, g.given("y", B, 1, S * 3, 4), axis=3)


def rows_of_a_map_read_twice(g: Maker) -> list[Value]:
    y = g.linear(g.given("x", B, S, 3, 8), 8)
    return [g.add("gelu", g.add("reshape", y, shape=(B, S * 3, 8))), g.add("negative", y)]


PRODUCTS: tuple[tuple[Body, list[str]], ...] = (
    (product, ["matmul"]),
    (bias, ["matmul + add"]),
    (bias_and_gelu, ["matmul + add + gelu"]),
    (bias_and_residual, ["matmul + add + add"]),
    (rows_of_a_map, ["matmul + add + gelu + add"]),
    (rows_of_a_map_in_a_concat, ["matmul + add + tanh", "copy"]),
    (rows_of_a_map_read_twice, ["matmul + add", "gelu", "negative"]),
    (scale_and_floor, ["matmul + multiply + maximum"]),
    (norm_behind, ["matmul + add", "norm"]),
    (bias_of_rows, ["matmul", "add"]),
    (broadcast_product, ["matmul", "add"]),
    (product_used_twice, ["matmul", "negative", "exp"]),
    (prologue_is_written, ["exp", "matmul"]),
    (product_of_inputs, ["matmul"]),
    (product_with_transposed, ["matmul"]),
    (reversed_operands, ["matmul"]),
    (broadcast_operands, ["matmul", "matmul"]),
    (products_side_by_side, ["matmul", "matmul"]),
    (turned_batches, ["matmul", "copy"]),
    (integers, ["matmul"]),
    (no_steps_of_k, ["matmul"]),
)
"""With at most one view that the rows of all axes cannot be walked as one in."""


def sliced_behind_one(g: Maker) -> Value:
    """The axis of one element hides that batches are further apart than their rows tell."""
    part = g.add("slice", g.given("x", B, 1, T, 8), starts=(0, 0, 0, 0), steps=(1, 1, 2, 1),
                 shape=(B, 1, (T + 1) // 2, 8))  # fmt: skip
    return g.add("matmul", part, weight_of(g))


def reversed_behind_one(g: Maker) -> Value:
    back = g.add("slice", g.given("x", B, 1, T, 8), starts=(0, 0, T - 1, 0), steps=(1, 1, -1, 1),
                 shape=(B, 1, T, 8))  # fmt: skip
    return g.add("matmul", back, weight_of(g))


def turned_behind_one(g: Maker) -> Value:
    return g.add("matmul", g.add("transpose", g.given("x", B, 1, 8, T), perm=(0, 1, 3, 2)),
                 weight_of(g))  # fmt: skip


def residual_behind_one(g: Maker) -> Value:
    part = g.add("slice", g.given("y", B, 1, 13, 9), starts=(0, 0, 1, 0), steps=(1, 1, 2, 1),
                 shape=(B, 1, 6, 9))  # fmt: skip
    return g.add("add", g.linear(g.given("x", B, 1, 6, 8), 9), part)


def result_behind_one(g: Maker) -> Value:
    y = g.add("matmul", g.given("x", B, 1, S, 8), weight_of(g))
    return g.add("concat", y, g.given("y", B, 1, T, 9), axis=2)


def one_behind_the_rows(g: Maker) -> Value:
    """Strides along an axis of one element mean nothing, least of all between rows."""
    back = g.add("slice", g.given("x", T, 1, 8), starts=(T - 1, 0, 0), steps=(-1, 1, 1),
                 shape=(T, 1, 8))  # fmt: skip
    return g.add("matmul", back, weight_of(g))


APART = (
    sliced_behind_one,
    reversed_behind_one,
    turned_behind_one,
    residual_behind_one,
    result_behind_one,
    one_behind_the_rows,
    turned_operand,
    last_rows,
    sliced_operand,
    turned_result,
    products_one_behind_the_other,
    turned_residual,
    sliced_residual,
)
"""Arrays of products with a weight in which the rows of all axes may not be one axis."""
RUNS: tuple[dict[str, int], ...] = (
    {"B": 2, "S": 5, "T": 3}, {"B": 3, "S": 17, "T": 33}, {"B": 1, "S": 1, "T": 1},
)  # fmt: skip
