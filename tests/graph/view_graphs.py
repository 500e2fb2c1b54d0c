"""Graphs of views, drawn by a seed: operators that read memory, each behind chains of views.

A chain is made backwards, from the shape that an operator wants to an input or a computed value.
Extents of inputs are numbers or symbols: where a view needs another extent at run time, it gets a
symbol of its own, whose number follows from others by a rule.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tests.graph.graphs import B, Maker, S, T

from ftuner.core.dim import Dim, Shape, Symbolic, product, symbol
from ftuner.core.dtype import INT64
from ftuner.core.evaluation import evaluate
from ftuner.graph.ir import Graph, Value

Bindings = Mapping[str, int]
Way = Callable[[Shape, int], "Value | None"]
BATCHES = (0, 1, 2, 2, 3)
EXTENTS = (0, 1, 1, 2, 3, 5, 8, 15, 16, 17, 33)
"""Of symbols: none, one, and around the widths of vectors."""
STATIC = (1, 1, 1, 2, 3, 4, 5, 8, 16, 17)
COLUMNS = (1, 5, 16, 33, 64)
STEPS = (1, 1, 2, 3, -1, -1, -2)
MAX_RANK = 5
MOST_ELEMENTS = 1 << 15
"""Of the largest tensor that an operator reads, at any extents."""


class ViewMaker(Maker):
    """A builder of values behind views."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self._rules: dict[str, Callable[[Bindings], int]] = {}

    def bindings(self, largest: int) -> dict[str, int]:
        """Extents for all symbols."""
        found = {"B": self.random.choice(BATCHES)}
        extents = [n for n in EXTENTS if n <= largest]
        found |= {name: self.random.choice(extents) for name in ("S", "T")}
        for name, rule in self._rules.items():
            found[name] = rule(found)
        return found

    def another(self, rule: Callable[[Bindings], int]) -> Symbolic:
        """A symbol whose number follows from those made before."""
        name = f"U{len(self._rules)}"
        self._rules[name] = rule
        return symbol(name)

    def tell_extents(self) -> None:
        """Symbols are known from inputs: those that only views name get inputs of their own."""
        told = {str(n) for x in self.inputs for n in x.shape}
        for name in ("B", "S", "T", *self._rules):
            if name not in told:
                self.given(f"x{len(self.inputs)}", symbol(name))

    def longer(self, extent: Dim, step: int, more: int) -> Dim:
        """An extent that holds `extent` elements `step` apart, and so many others."""

        def rule(bindings: Bindings) -> int:
            count = evaluate(extent, bindings)
            return (count - 1) * step + 1 + more if count else more

        return rule({}) if isinstance(extent, int) else self.another(rule)

    # Shapes.

    def extent(self) -> Dim:
        return self.random.choice((B, S, T)) if self.chance(0.45) else self.random.choice(STATIC)

    def shape(self, rank: int, last: Dim | None = None) -> Shape:
        """A shape of not too many elements."""
        most = {"B": max(BATCHES), "S": max(EXTENTS), "T": max(EXTENTS)}
        while True:
            dims = [self.extent() for _ in range(rank)]
            if rank > 3 and self.chance(0.6):
                # An axis of one element, between two that may not lie as one.
                dims[self.random.randrange(1, rank - 2)] = 1
            if last is not None:
                dims[-1] = last
            if evaluate(product(dims), most) <= MOST_ELEMENTS:
                return tuple(dims)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # Views.

    def viewed(self, *shape: Dim) -> Value:
        """A value of a shape, behind some views."""
        return self._behind(shape, self.random.choice((0, 1, 1, 1, 2, 2, 3)))

    def _behind(self, shape: Shape, depth: int) -> Value:
        ways: list[Way] = [
            self._turned, self._sliced, self._sliced, self._with_one, self._without_one,
            self._expanded, self._merged, self._cut, self._joined,
        ]  # fmt: skip
        self.random.shuffle(ways)
        for way in ways if depth else ():
            found = way(shape, depth - 1)
            if found is not None:
                return found
        return self._leaf(shape)

    def _leaf(self, shape: Shape) -> Value:
        """An input, or something computed that is stored in several ways."""
        known = [x for x in self.inputs if x.shape == shape and x.dtype.kind == "float"]
        if known and self.chance(0.3):
            return self.random.choice(known)
        kind = self.random.choice(("input",) * 5 + ("tanh", "softmax", "product", "product"))
        last = shape[-1] if shape else None
        if kind == "product" and len(shape) > 1 and isinstance(last, int) and last:
            return self.linear(self._given((*shape[:-1], 8)), last, bias=False)
        x = self._given(shape)
        if kind == "softmax" and shape:
            return self.add("softmax", x, axis=self.random.randrange(len(shape)), log=False)
        return self.add("tanh", x) if kind == "tanh" else x

    def _given(self, shape: Shape) -> Value:
        return self.given(f"x{len(self.inputs)}", *shape)

    def _turned(self, shape: Shape, depth: int) -> Value | None:
        if len(shape) < 2:
            return None
        perm = list(range(len(shape)))
        if self.chance(0.5):
            perm[-2:] = reversed(perm[-2:])
        else:
            self.random.shuffle(perm)
        base: list[Dim] = list(shape)
        for axis, p in enumerate(perm):
            base[p] = shape[axis]
        return self.add("transpose", self._behind(tuple(base), depth), perm=tuple(perm))

    def _sliced(self, shape: Shape, depth: int) -> Value | None:
        if not shape:
            return None
        base: list[Dim] = list(shape)
        starts: list[Dim] = [0] * len(shape)
        steps = [1] * len(shape)
        axes = self.random.sample(range(len(shape)), min(len(shape), 1 + self.chance(0.3)))
        if len(shape) > 2 and self.chance(0.5):
            # Rows, as of a part of a sequence.
            axes = [len(shape) - 2]
        for axis in axes:
            step = self.random.choice(STEPS)
            before, after = self.random.choice((0, 0, 1, 2)), self.random.choice((0, 0, 1, 3))
            base[axis] = self.longer(shape[axis], abs(step), before + after)
            starts[axis] = before if step > 0 else base[axis] - 1 - after
            steps[axis] = step
        x = self._behind(tuple(base), depth)
        return self.add("slice", x, starts=tuple(starts), steps=tuple(steps), shape=shape)

    def _with_one(self, shape: Shape, depth: int) -> Value | None:
        ones = [axis for axis, n in enumerate(shape) if n == 1]
        if not ones:
            return None
        axis = self.random.choice(ones)
        x = self._behind((*shape[:axis], *shape[axis + 1 :]), depth)
        return self.add("reshape", x, shape=shape)

    def _without_one(self, shape: Shape, depth: int) -> Value | None:
        if len(shape) >= MAX_RANK:
            return None
        axis = self.random.randrange(len(shape) + 1)
        return self.add(
            "reshape", self._behind((*shape[:axis], 1, *shape[axis:]), depth), shape=shape
        )

    def _expanded(self, shape: Shape, depth: int) -> Value | None:
        if not shape or self.chance(0.4):
            return None
        base: list[Dim] = list(shape)
        for axis in self.random.sample(range(len(shape)), min(len(shape), 1 + self.chance(0.3))):
            base[axis] = 1
        while base and base[0] == 1 and self.chance(0.3):
            base.pop(0)
        return self.add("broadcast", self._behind(tuple(base), depth), shape=shape)

    def _merged(self, shape: Shape, depth: int) -> Value | None:
        """One axis of several: of numbers alone, as two symbols would make no symbol."""
        for axis, n in enumerate(shape):
            if isinstance(n, int) and n > 3 and len(shape) < MAX_RANK:
                divisors = [d for d in range(2, n) if n % d == 0]
                if divisors:
                    first = self.random.choice(divisors)
                    base = (*shape[:axis], first, n // first, *shape[axis + 1 :])
                    return self.add("reshape", self._behind(base, depth), shape=shape)
        return None

    def _cut(self, shape: Shape, depth: int) -> Value | None:
        """Two axes of one."""
        if len(shape) < 2:
            return None
        axis = self.random.randrange(len(shape) - 1)
        whole = product(shape[axis : axis + 2])
        if not isinstance(whole, int) and whole not in shape:
            count = whole
            whole = self.another(lambda bindings: evaluate(count, bindings))
        base = (*shape[:axis], whole, *shape[axis + 2 :])
        return self.add("reshape", self._behind(base, depth), shape=shape)

    def _joined(self, shape: Shape, depth: int) -> Value | None:
        for axis, n in enumerate(shape):
            if isinstance(n, int) and n > 1 and self.chance(0.5):
                first = self.random.randrange(1, n)
                parts = [
                    self._behind((*shape[:axis], count, *shape[axis + 1 :]), depth if i else 0)
                    for i, count in enumerate((first, n - first))
                ]
                return self.add("concat", *parts, axis=axis)
        return None

    # Operators.

    def products_with_a_weight(self) -> list[Value]:
        k, n = self.random.choice(STATIC[2:]), self.random.choice(COLUMNS)
        shape = self.shape(self.random.choice((2, 3, 4, 4)), last=k)
        y = self.add("matmul", self.viewed(*shape), self.weight(k, n))
        return [self._after(self._epilogue(y))]

    def products_behind_one(self) -> list[Value]:
        """An axis of one element before rows that are cut or turned, in A and in a residual."""
        n = self.random.choice(COLUMNS[1:])
        batch, rows = self.random.choice((2, 3, B, S)), self.random.choice((2, 3, 5, T))

        def behind(columns: Dim) -> Value:
            shape, depth = (batch, 1, rows, columns), self.random.choice((0, 0, 1))
            way = self.random.choice((self._sliced, self._sliced, self._turned))
            found = way(shape, depth)
            assert found is not None
            return found

        y = self.add("matmul", behind(8), self.weight(8, n))
        return [self._after(self.add("add", y, behind(n)) if self.chance(0.5) else y)]

    def products_with_one_weight(self) -> list[Value]:
        """Rows and columns of A, as of MatMul and Gemm, and the weight transposed."""
        k, n = self.random.choice(STATIC[2:]), self.random.choice(COLUMNS)
        weight = self.weight(k, n)
        found = []
        for _ in range(self.random.choice((2, 3))):
            kind = self.random.choice(("rows", "columns", "back"))
            if kind == "rows":
                y = self.add("matmul", self.viewed(*self.shape(3, last=k)), weight)
            elif kind == "columns":
                x = self.add("transpose", self.viewed(k, self.extent()), perm=(1, 0))
                y = self.add("matmul", x, weight)
            else:
                turned = self.add("transpose", weight, perm=(1, 0))
                y = self.add("matmul", self.viewed(self.extent(), n), turned)
            found.append(self._epilogue(y))
        return found

    def products_of_two(self) -> list[Value]:
        batch = self.shape(self.random.choice((0, 1, 2)))
        left, right = self._broadcasting(batch)
        m, k, n = self.extent(), self.extent(), self.extent()
        a, b = self.viewed(*left, m, k), self.viewed(*right, k, n)
        return [self._after(self._epilogue(self.add("matmul", a, b)))]

    def products_with_itself(self) -> list[Value]:
        x = self.viewed(*self.shape(self.random.choice((2, 3))))
        turned = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
        y = self.add("transpose", x, perm=turned)
        pair = (x, y) if self.chance(0.5) else (y, x)
        return [self._epilogue(self.add("matmul", *pair))]

    def attentions(self) -> list[Value]:
        """As exporters write it, or as one node already."""
        batch = self.shape(self.random.choice((1, 2)))
        shared = tuple(1 if self.chance(0.3) else n for n in batch)
        rows, keys = self.extent(), self.extent()
        depth, columns = self.random.choice(STATIC), self.random.choice(STATIC)
        scale = self.random.choice((0.3, 1.0, -0.5))
        mask = None
        if self.chance(0.5):
            whole = (*batch, rows, keys)
            mask = self.viewed(*(1 if self.chance(0.4) else n for n in whole))
        q, v = self.viewed(*batch, rows, depth), self.viewed(*shared, keys, columns)
        if self.chance(0.5):
            axes = len(batch)
            k = self.viewed(*shared, keys, depth)
            k = self.add("transpose", k, perm=(*range(axes), axes + 1, axes))
            return [self._after(self.attention(q, k, v, scale, mask))]
        k = self.viewed(*shared, depth, keys)
        causal = self.random.choice((None, keys - rows, 0, 1))
        masks = [] if mask is None else [mask]
        y = self.add("attention", q, k, v, *masks, scale=scale, causal=causal, safe=True)
        return [self._after(y)]

    def elementwise(self) -> list[Value]:
        whole = self.shape(self.random.choice((2, 3, 4)))
        left, right = self._broadcasting(whole)
        y = self.add("multiply", self.viewed(*left), self.viewed(*right))
        return [self.add("tanh", self.add("add", y, self.viewed(*right)))]

    def reductions(self) -> list[Value]:
        x = self.viewed(*self.shape(self.random.choice((2, 3, 4))))
        axes = tuple(sorted(self.random.sample(range(x.rank), self.random.choice((1, 1, 2)))))
        found = [self.add("reduce", x, kind="sum", axes=axes)]
        axis = self.random.randrange(x.rank)
        if self.chance(0.5):
            found.append(self.add("softmax", x, axis=axis, log=False))
        else:
            found.append(self.add("cumulative_sum", x, axis=axis, exclusive=self.chance(0.5),
                                  reverse=self.chance(0.5)))  # fmt: skip
        return found

    def selections(self) -> list[Value]:
        """The best of an axis, and rows by their number."""
        shape = list(self.shape(self.random.choice((1, 2, 3))))
        axis = self.random.randrange(len(shape))
        shape[axis] = count = self.random.choice((3, 5, 17))
        x = self.viewed(*shape)
        wanted = self.random.choice((1, 2, count))
        found = self.add_many("top_k", x, axis=axis, k=wanted, largest=self.chance(0.5))
        at = self.given(f"x{len(self.inputs)}", self.extent(), dtype=INT64)
        return [*found, self.add("gather", x, at, axis=axis)]

    def _broadcasting(self, whole: Shape) -> tuple[Shape, Shape]:
        """Two shapes that make up a whole: along some axes one of them has a single element."""
        left, right = list(whole), list(whole)
        for axis in range(len(whole)):
            if self.chance(0.3):
                self.random.choice((left, right))[axis] = 1
        return tuple(left), tuple(right)

    def _epilogue(self, y: Value) -> Value:
        kind = self.random.choice(("", "", "bias", "erf", "residual", "residual"))
        if kind == "bias" and isinstance(y.shape[-1], int):
            return self.add("add", y, self.weight(y.shape[-1]))
        if kind == "residual":
            return self.add("add", y, self.viewed(*y.shape))
        return self.add("erf", y) if kind == "erf" else y

    def _after(self, y: Value) -> Value:
        """A result that is wanted in another order, shape or place."""
        kind = self.random.choice(("", "", "turned", "heads", "joined", "sliced"))
        if kind == "turned" or (kind == "heads" and y.rank < 3):
            perm = list(range(y.rank))
            self.random.shuffle(perm)
            return self.add("transpose", y, perm=tuple(perm))
        if kind == "heads":
            *batch, heads, rows, columns = y.shape
            axes = range(len(batch))
            turned = self.add("transpose", y, perm=(*axes, *(len(batch) + i for i in (1, 0, 2))))
            return self.add("reshape", turned, shape=(*batch, rows, heads * columns))
        if kind == "joined":
            axis = self.random.randrange(y.rank)
            other = self.viewed(*y.shape[:axis], 2, *y.shape[axis + 1 :])
            return self.add("concat", *self.random.sample((y, other), 2), axis=axis)
        if kind == "sliced":
            axis = self.random.randrange(y.rank)
            starts = tuple(n - 1 if i == axis else 0 for i, n in enumerate(y.shape))
            steps = tuple(-1 if i == axis else 1 for i in range(y.rank))
            return self.add("slice", y, starts=starts, steps=steps, shape=y.shape)
        return y


OPERATORS: Sequence[Callable[[ViewMaker], list[Value]]] = (
    ViewMaker.products_with_a_weight,
    ViewMaker.products_behind_one,
    ViewMaker.products_with_one_weight,
    ViewMaker.products_of_two,
    ViewMaker.products_with_itself,
    ViewMaker.attentions,
    ViewMaker.elementwise,
    ViewMaker.reductions,
    ViewMaker.selections,
)


def view_graph(
    seed: int, shapes: int, largest: int = max(EXTENTS)
) -> tuple[Graph, list[dict[str, int]]]:
    """A graph of two operators, and several bindings of its symbols, which are no larger."""
    maker = ViewMaker(seed)
    outputs: list[Value] = []
    for number in range(2):
        chosen = OPERATORS[(seed + number * (seed // len(OPERATORS) + 1)) % len(OPERATORS)]
        outputs += chosen(maker)
    maker.tell_extents()
    return maker.made(*outputs), [maker.bindings(largest) for _ in range(shapes)]
