"""Graphs and the steps that they become, told by their titles."""

from collections.abc import Callable, Sequence

from tests.graph.graphs import B, Maker, S, T

from ftuner.core.dtype import INT64
from ftuner.graph.algebra import apply, concat, exp, gather, sqrt, tanh
from ftuner.graph.ir import Value

Body = Callable[[Maker], "Value | Sequence[Value]"]


def x_of(g: Maker) -> Value:
    return g.given("x", B, S, 8)


def weight_of(g: Maker) -> Value:
    return g.weight(8, 9)


def product(g: Maker) -> Value:
    return x_of(g) @ weight_of(g)


def each(x: Value, *functions: Callable[[Value], Value]) -> list[Value]:
    return [function(x) for function in functions]


def same(x: Value) -> Value:
    return x


def norm(x: Value, *scales: Value, rms: bool = False) -> Value:
    return apply("norm", x, *scales, axis=2, epsilon=1e-5, rms=rms)


def softmax(x: Value, axis: int) -> Value:
    return apply("softmax", x, axis=axis, log=False)


def total(x: Value, axis: int) -> Value:
    return x.reduce("sum", (axis,), keep=False)


def gelu(x: Value) -> Value:
    return apply("gelu", x)


def scan(x: Value, before: bool) -> Value:
    """Sums of what is before each element, or of it and what is after it."""
    return apply("cumulative_sum", x, axis=1, exclusive=before, reverse=not before)


def resampled(g: Maker, axis: int) -> Value:
    at, w = g.given("at", 2, T, dtype=INT64), g.given("w", 2, T)
    return apply("resample", x_of(g), at, w, axes=(axis,)).transpose((0, 2, 1))


def scattered(g: Maker, x: Value, kind: str, of: Callable[[Value], Value]) -> Value:
    at, y = g.given("at", 2, T, dtype=INT64), g.given("y", 2, T)
    return apply("scatter_elements", x, at, of(y), axis=0, kind=kind)


def in_place(g: Maker) -> Value:
    x, y, z = g.given("x", B, S), g.given("y", B, T), g.given("z", B, S)
    return concat([exp(x), y, -z], 1)


def best(g: Maker) -> list[Value]:
    values, positions = g.add_many("top_k", -g.given("x", B, 9), axis=1, k=4, largest=True)
    return [exp(values), positions]


def reversed_operands(g: Maker) -> Value:
    x, y = g.given("x", S, 8), g.given("y", 8, T)
    x = apply("slice", x, starts=(S - 1, 7), steps=(-1, -1), shape=(S, 8))
    return x @ apply("slice", y, starts=(7, T - 1), steps=(-1, -1), shape=(8, T))


def batches(g: Maker) -> Value:
    """Rows of a product with batch axes go where the transposition wants them."""
    y = g.given("q", B, 2, S, 4) @ g.given("k", B, 2, 4, 3)
    return y.transpose((0, 2, 1, 3)).reshape((B, S, 6))


def spread(g: Maker) -> list[Value]:
    x, y = g.given("x", S, 1).broadcast((S, 8)), g.given("y", 1, 9).broadcast((8, 9))
    return [x @ weight_of(g), g.given("z", S, 8) @ y]


def row_map(g: Maker) -> Value:
    return g.linear(g.given("x", B, S, 3, 8), 8)


NESTS: dict[str, tuple[Body, list[str]]] = {
    "pointwise": (lambda g: exp((x_of(g) + g.weight(8)) * 2), ["add + multiply + exp"]),
    "prologue of a reduction": (lambda g: total(exp(x_of(g)), 2), ["exp + reduce"]),
    "epilogue of a reduction": (
        lambda g: sqrt(abs(total(x_of(g), 2))), ["reduce + absolute + sqrt"]),
    "norm of a sum": (
        lambda g: norm(x_of(g) + g.given("y", B, S, 8), g.weight(8), g.weight(8)), ["add + norm"]),
    "norm of a sum that is read again": (
        lambda g: each(x_of(g) + g.given("y", B, S, 8), norm, exp), ["add", "norm", "exp"]),
    # It has several stages: what is dear is computed once.
    "norm of something dear": (lambda g: norm(tanh(x_of(g))), ["tanh", "norm"]),
    "softmax and after": (lambda g: softmax(x_of(g), 2) * g.weight(8), ["softmax + multiply"]),
    "softmax of columns and after": (
        lambda g: softmax(g.given("x", B, S, T), 1) * g.given("y", S, T), ["softmax + multiply"]),
    "dear value used twice": (
        lambda g: each(exp(x_of(g)), lambda y: y + 1, lambda y: y * 2), ["exp", "add", "multiply"]),
    "cheap value used twice": (
        lambda g: each(x_of(g) + 1, lambda y: -y, abs), ["add + negative", "add + absolute"]),
    "value used twice by one node": (
        lambda g: each(exp(x_of(g)), lambda y: y * y), ["exp", "multiply"]),
    "scan": (lambda g: scan(-x_of(g), False) + 1, ["negative + cumulative_sum", "add"]),
    "scan forwards": (
        lambda g: scan(x_of(g), True) * g.weight(8), ["cumulative_sum + multiply"]),
    "gathered": (
        lambda g: gather(g.weight(3, 8), g.given("at", B, S, dtype=INT64)) + g.weight(8),
        ["gather + add"]),
    # Vectors lie along the channels of the rows that are looked up.
    "resampled and turned": (lambda g: resampled(g, 1), ["resample", "copy"]),
    # Each element is looked up along the last axis: the order of axes does not matter.
    "resampled lines turned": (lambda g: resampled(g, 2), ["resample + transpose"]),
    "scattered": (
        lambda g: scattered(g, exp(g.given("x", 3, T)), "add", same), ["exp", "scatter_elements"]),
    "scattered into an input": (
        lambda g: scattered(g, g.given("x", 3, T), "none", lambda y: -y),
        ["copy", "negative + scatter_elements"]),
    # Views.
    "reshaped and turned": (
        lambda g: -g.given("x", B, S, 2, 4).transpose((0, 2, 1, 3)).reshape((B, 2, S * 4)),
        ["copy", "negative"]),
    "heads of a slice": (
        lambda g: exp(g.heads(g.given("x", B, S, 24).slice(2, 8, 8), 2, (0, 2, 1, 3))), ["exp"]),
    "ones come and go": (
        lambda g: (-g.given("x", B, S)).reshape((B, 1, 1, S)) + g.given("y", B, 2, S, S),
        ["negative + add"]),
    "view as output": (lambda g: g.given("x", B, S, T).transpose((2, 0, 1)), ["copy"]),
    "concat in place": (in_place, ["exp", "copy", "negative"]),
    "concat of one value": (
        lambda g: concat([exp(g.given("x", B, S))] * 3, 0), ["exp", "copy", "copy"]),
    "concat in the middle": (
        lambda g: total(concat([exp(g.given("x", B, S)), g.given("y", B, T)], 1), 1),
        ["exp", "copy", "reduce"]),
    "outputs that are no results": (
        lambda g: each(g.given("x", B, S), same, lambda x: g.weight(3), exp, exp, same),
        ["copy", "copy", "exp", "copy", "copy"]),
    "output that is read too": (
        lambda g: each(exp(g.given("x", B, S)), same, lambda y: total(y, 1),
                       lambda y: y.transpose((1, 0))), ["exp", "reduce", "copy"]),
    "output in another shape": (
        lambda g: exp(g.given("x", B, S, 6)).reshape((B, S * 2, 3)), ["exp"]),
    "output in two shapes": (
        lambda g: each(exp(g.given("x", B, S, 6)), lambda y: y.reshape((B, S * 2, 3)), same),
        ["exp", "copy"]),
    "best": (best, ["negative", "top_k", "exp"]),
}  # fmt: skip
PRODUCTS: dict[str, tuple[Body, list[str]]] = {
    "product": (product, ["matmul"]),
    "bias": (lambda g: g.linear(x_of(g), 9), ["matmul + add"]),
    "bias and gelu": (lambda g: gelu(g.linear(x_of(g), 9)), ["matmul + add + gelu"]),
    "bias and residual": (
        lambda g: g.given("y", B, S, 9) + g.linear(x_of(g), 9), ["matmul + add + add"]),
    # The rows are merged: the epilogue goes on.
    "rows of a map": (
        lambda g: gelu(row_map(g).reshape((B, S * 3, 8))) + g.given("residual", B, S * 3, 8),
        ["matmul + add + gelu + add"]),
    "rows of a map in a concat": (
        lambda g: concat([tanh(row_map(g).reshape((B, 1, S * 3, 8))),
                          g.given("y", B, 1, S * 3, 4)], 3), ["matmul + add + tanh", "copy"]),
    "rows of a map read twice": (
        lambda g: each(row_map(g), lambda y: gelu(y.reshape((B, S * 3, 8))), lambda y: -y),
        ["matmul + add", "gelu", "negative"]),
    "scale and floor": (
        lambda g: (product(g) * 0.5).at_least(0), ["matmul + multiply + maximum"]),
    "norm behind": (
        lambda g: norm(g.linear(x_of(g), 9), g.weight(9), rms=True), ["matmul + add", "norm"]),
    # It spreads over the product in another way: no epilogue, but a nest of its own.
    "bias of rows": (lambda g: product(g) + g.given("y", B, S, 1), ["matmul", "add"]),
    "broadcast product": (
        lambda g: g.given("x", S, 8) @ weight_of(g) + g.given("y", B, S, 9), ["matmul", "add"]),
    "product used twice": (
        lambda g: each(product(g), lambda y: -y, exp), ["matmul", "negative", "exp"]),
    "prologue is written": (lambda g: exp(x_of(g)) @ weight_of(g), ["exp", "matmul"]),
    "product of inputs": (lambda g: x_of(g) @ g.given("y", B, 8, T), ["matmul"]),
    "product with transposed": (
        lambda g: x_of(g) @ g.given("y", B, T, 8).transpose((0, 2, 1)), ["matmul"]),
    "reversed operands": (reversed_operands, ["matmul"]),
    "broadcast operands": (spread, ["matmul", "matmul"]),
    "products side by side": (
        lambda g: concat(each(x_of(g), *(lambda x, n=n: x @ g.weight(8, n) for n in (3, 4))), 2),
        ["matmul", "matmul"]),
    "turned batches": (batches, ["matmul", "copy"]),
    "integers": (
        lambda g: g.given("x", S, 3, dtype=INT64) @ g.given("y", 3, T, dtype=INT64), ["matmul"]),
    "no steps of k": (lambda g: g.given("x", S, 0) @ g.given("y", 0, T), ["matmul"]),
}  # fmt: skip
"""With at most one view that the rows of all axes cannot be walked as one in."""
APART: dict[str, Body] = {
    # The axis of one element hides that batches are further apart than their rows tell.
    "sliced behind one": lambda g: (
        g.given("x", B, 1, T, 8).slice(2, 0, (T + 1) // 2, 2) @ weight_of(g)),
    "reversed behind one": lambda g: g.given("x", B, 1, T, 8).slice(2, T - 1, T, -1) @ weight_of(g),
    "turned behind one": lambda g: g.given("x", B, 1, 8, T).swapped() @ weight_of(g),
    "residual behind one": lambda g: (
        g.linear(g.given("x", B, 1, 6, 8), 9) + g.given("y", B, 1, 13, 9).slice(2, 1, 6, 2)),
    "result behind one": lambda g: concat(
        [g.given("x", B, 1, S, 8) @ weight_of(g), g.given("y", B, 1, T, 9)], 2),
    # Strides along an axis of one element mean nothing, least of all between rows.
    "one behind the rows": lambda g: g.given("x", T, 1, 8).slice(0, T - 1, T, -1) @ weight_of(g),
    "turned operand": lambda g: x_of(g).transpose((1, 0, 2)) @ weight_of(g),
    # The last token of each sentence.
    "last rows": lambda g: x_of(g).slice(1, S - 1, 1) @ weight_of(g),
    "sliced operand": lambda g: g.given("x", B, T, 8).slice(1, 1, T - 1) @ weight_of(g),
    "turned result": lambda g: product(g).transpose((1, 0, 2)),
    "products one behind the other": lambda g: concat(
        each(x_of(g), *[lambda x: x @ weight_of(g)] * 2), 1),
    "turned residual": lambda g: product(g) + g.given("y", S, B, 9).transpose((1, 0, 2)),
    "sliced residual": lambda g: (
        g.linear(g.given("x", B, 6, 8), 9) + g.given("y", B, 13, 9).slice(1, 1, 6, 2)),
}  # fmt: skip
"""Arrays of products with a weight in which the rows of all axes may not be one axis."""
RUNS: tuple[dict[str, int], ...] = (
    {"B": 2, "S": 5, "T": 3}, {"B": 3, "S": 17, "T": 33}, {"B": 1, "S": 1, "T": 1},
)  # fmt: skip
