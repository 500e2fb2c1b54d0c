"""A model that is being made: its tensors, nodes, constants and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tests.random_graphs.drawing import DeclinedError, Draws
from tests.random_graphs.extents import (
    BINDINGS,
    MAX_ELEMENTS,
    MAX_WORK,
    ONE,
    Extent,
    Shape,
    elements,
    number,
    numbers,
    same,
    static,
)
from tests.random_graphs.tensors import (
    DTYPES,
    FLOATS,
    MAX_RANK,
    UNSIGNED,
    Array,
    Fill,
    Input,
    Tensor,
)


@dataclass(frozen=True)
class _Mark:
    """How much there was before a step."""

    nodes: int
    tensors: int
    inputs: int
    constants: tuple[str, ...]
    symbols: tuple[str, ...]
    outputs: int
    names: int
    work: tuple[int, ...]


@dataclass
class Maker:
    """A model in the making. Rows of the table add nodes to it, by what `draws` says."""

    opset: int
    draws: Draws
    seed: int
    viewing: Callable[[Maker, Tensor], Tensor]
    """Puts a chain of views in front of an operand."""
    forming: Callable[[Maker, Shape, str], Tensor | None]
    """Makes a tensor of a shape by views of another, if it can."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    symbols: dict[str, Extent] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    """Outputs that no other node may read: their extents are known only to data."""
    max_elements: int = MAX_ELEMENTS
    max_work: int = MAX_WORK
    _names: int = 0
    _work: tuple[int, ...] = (0,) * BINDINGS

    # Steps.

    def mark(self) -> _Mark:
        return _Mark(
            len(self.nodes), len(self.tensors), len(self.inputs), tuple(self.constants),
            tuple(self.symbols), len(self.ends), self._names, self._work,
        )  # fmt: skip

    def undo(self, mark: _Mark) -> None:
        """Take back what was added since."""
        del self.nodes[mark.nodes :], self.tensors[mark.tensors :]
        del self.inputs[mark.inputs :], self.ends[mark.outputs :]
        self.constants = {name: self.constants[name] for name in mark.constants}
        self.symbols = {name: self.symbols[name] for name in mark.symbols}
        self._names, self._work = mark.names, mark.work

    def name(self, kind: str = "t") -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def spend(self, work: Sequence[int]) -> None:
        """Raises DeclinedError where a graph would be too much work."""
        total = tuple(x + y for x, y in zip(self._work, work, strict=True))
        if max(total) > self.max_work:
            raise DeclinedError("too much work")
        self._work = total

    # Nodes.

    def node(
        self, op: str, inputs: Sequence[Tensor | None], results: Sequence[Tensor | None],
        domain: str = "", **attributes: Any,
    ) -> None:  # fmt: skip
        """Add a node; None is an input or output that is left out."""
        names = [x.name if x is not None else "" for x in inputs]
        while names and not names[-1]:
            names.pop()
        outputs = [x.name if x is not None else "" for x in results]
        attributes = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(op, names, outputs, domain=domain, **attributes))
        for x in results:
            if x is not None:
                self._expect_small(x.shape)
                self.spend(elements(x.shape))
                self.tensors.append(x)

    def new(
        self, shape: Iterable[Extent], dtype: str, low: float = -1.0, high: float = 1.0
    ) -> Tensor:
        """A tensor for a node to give."""
        return Tensor(self.name(), dtype, tuple(shape), min(low, high), max(low, high))

    def add(
        self, op: str, inputs: Sequence[Tensor | None], shape: Iterable[Extent], dtype: str,
        low: float = -1.0, high: float = 1.0, domain: str = "", **attributes: Any,
    ) -> Tensor:  # fmt: skip
        """Add a node of one result."""
        result = self.new(shape, dtype, low, high)
        self.node(op, inputs, [result], domain, **attributes)
        return result

    def moved(
        self, op: str, x: Tensor, shape: Iterable[Extent], *others: Tensor, **attributes: Any
    ) -> Tensor:
        """Add a node whose result has the dtype and the range of its first operand."""
        return self.add(op, [x, *others], shape, x.dtype, x.low, x.high, **attributes)

    def _expect_small(self, shape: Sequence[Extent]) -> None:
        if max(elements(shape)) > self.max_elements or len(shape) > MAX_RANK + 2:
            raise DeclinedError("too many elements")

    # Constants.

    def constant(self, array: Any, share: bool = False) -> Tensor:
        """A constant: an initialiser or a Constant node. With `share`, an equal one may be used."""
        array = np.asarray(array)
        if share:
            for name, known in self.constants.items():
                if known.dtype == array.dtype and np.array_equal(known, array):
                    return self.tensor_of(name, known)
        if self.opset >= 13 and array.size <= 64 and self.draws.chance(0.1):
            name = self.name("c")
            value = numpy_helper.from_array(array, name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=value))
            return self.tensor_of(name, array)
        name = self.name("w")
        self.constants[name] = array
        return self.tensor_of(name, array)

    @staticmethod
    def tensor_of(name: str, array: Array) -> Tensor:
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        return Tensor(name, array.dtype.name, tuple(map(static, array.shape)), low, high, array)

    def integers(self, values: Sequence[int], dtype: str = "int64") -> Tensor:
        return self.constant(np.array(values, dtype), share=True)

    def scalar(self, value: float, dtype: str) -> Tensor:
        """A constant of one element, without axes or now and then with one or two."""
        array = np.array(value, dtype)
        rank = self.draws.weighted((0, 1, 2), (0.8, 0.15, 0.05))
        return self.constant(array.reshape((1,) * rank), share=True)

    def random(self) -> np.random.Generator:
        """Of the elements of the next constant."""
        return np.random.default_rng([self.seed, self._names])

    def weight(self, shape: Sequence[int], dtype: str, scale: float = 1.0) -> Tensor:
        """A constant of random elements, or one of that shape that there is already."""
        known = [
            n for n, x in self.constants.items() if x.shape == tuple(shape) and x.dtype == dtype
        ]
        if known and self.draws.chance(0.5):
            name = self.draws.pick(known)
            return self.tensor_of(name, self.constants[name])
        if int(np.prod(shape)) > self.max_elements:
            raise DeclinedError("too many elements")
        random = self.random()
        if dtype in FLOATS:
            array: Array = random.standard_normal(shape) * scale
        elif dtype == "bool":
            array = random.random(shape) < 0.5
        else:
            array = random.integers(0 if dtype in UNSIGNED else -5, 10, shape)
        return self.constant(array.astype(dtype))

    # Inputs.

    def symbol(self) -> Extent:
        """A symbol: one that there is, or a new one."""
        known = list(self.symbols.values())
        if known and self.draws.chance(0.6 if len(known) < 4 else 0.9):
            return self.draws.pick(known)
        return self.named(numbers(self.draws))

    def named(self, at: Sequence[int]) -> Extent:
        """A new symbol of given numbers."""
        name = f"n{len(self.symbols)}"
        self.symbols[name] = Extent(name, tuple(at))
        return self.symbols[name]

    def extent(self, zero: float = 0.02, large: float = 0.04) -> Extent:
        """The extent of an axis of a new input."""
        return self.symbol() if self.draws.chance(0.5) else static(number(self.draws, zero, large))

    def some_shape(self, ranks: Sequence[int] = (2, 1, 3, 4, 0, 5)) -> Shape:
        weights = {0: 0.05, 1: 0.15, 2: 0.3, 3: 0.3, 4: 0.15, 5: 0.05}
        rank = self.draws.weighted(ranks, [weights[r] for r in ranks])
        shape: list[Extent] = []
        for _ in range(rank):
            extent = self.extent(large=0.04 if rank < 3 else 0.0)
            if max(elements([*shape, extent])) > self.max_elements // 4:
                extent = ONE
            shape.append(extent)
        return tuple(shape)

    def fill(self, dtype: str) -> Fill:
        """How the elements of an input are drawn."""
        if dtype == "bool":
            return Fill("bool")
        if dtype in FLOATS:
            kinds = ("normal", "uniform", "ties", "special")
            kind = self.draws.weighted(kinds, (0.8, 0.08, 0.1, 0.02))
            return Fill(kind, (-3.0,) * BINDINGS, (3.0,) * BINDINGS)
        low = 0.0 if dtype in UNSIGNED else -5.0
        return Fill("uniform", (low,) * BINDINGS, (10.0,) * BINDINGS)

    def input(self, shape: Shape, dtype: str, fill: Fill | None = None) -> Tensor:
        """An input. What is neither static nor a symbol becomes a symbol of the same numbers."""
        self._expect_small(shape)
        dims: list[int | str | None] = []
        for extent in shape:
            if extent.static:
                dims.append(extent.at[0])
            elif extent.key in self.symbols:
                dims.append(None if self.draws.chance(0.1) else extent.key)
            else:
                known = [s for s in self.symbols.values() if s.at == extent.at]
                dims.append((self.draws.pick(known) if known else self.named(extent.at)).key)
        fill = self.fill(dtype) if fill is None else fill
        name = self.name("x")
        low, high = min(fill.low), max(fill.high)
        if fill.kind == "normal":
            low, high = -4.0, 4.0
        self.inputs.append(Input(name, dtype, shape, fill, tuple(dims)))
        self.tensors.append(Tensor(name, dtype, shape, low, high))
        return self.tensors[-1]

    def dtype(self, dtypes: Sequence[str]) -> str:
        """One of some element types, float32 for the most part."""
        shares = {"float32": 12.0, "float64": 2.0, "int64": 2.0, "int32": 1.5, "bool": 1.5}
        return self.draws.weighted(dtypes, [shares.get(t, 0.5) for t in dtypes])

    # Operands.

    def given(
        self, dtypes: Sequence[str] = DTYPES, ranks: Sequence[int] = (2, 1, 3, 4, 0, 5),
        accept: Callable[[Tensor], bool] = lambda x: True, size: float = 1e30,
    ) -> Tensor:  # fmt: skip
        """A tensor that there is, for the most part, or an input or a constant."""

        def fits(x: Tensor) -> bool:
            return x.dtype in dtypes and x.rank in ranks and x.size <= size and accept(x)

        known = [x for x in reversed(self.tensors) if fits(x)]
        if known and self.draws.chance(0.85):
            # Late ones first: graphs grow deep rather than wide.
            return known[min(self.draws.below(4) * self.draws.below(len(known)), len(known) - 1)]
        dtype = self.dtype(dtypes)
        shape = self.some_shape(ranks)
        for _ in range(4):
            x = self.leaf(shape, dtype)
            if fits(x):
                return x
            shape = self.some_shape(ranks)
        raise DeclinedError("no operand")

    def operand(
        self, dtypes: Sequence[str] = DTYPES, ranks: Sequence[int] = (2, 1, 3, 4, 0, 5),
        accept: Callable[[Tensor], bool] = lambda x: True, size: float = 1e30,
    ) -> Tensor:  # fmt: skip
        """A tensor, with or without views in front."""
        for _ in range(4):
            x = self.viewing(self, self.given(dtypes, ranks, lambda x: True, size))
            if x.rank in ranks and accept(x):
                return x
        return self.given(dtypes, ranks, accept, size)

    def leaf(self, shape: Shape, dtype: str) -> Tensor:
        """An input or constant of a shape."""
        if all(e.static for e in shape) and self.draws.chance(0.3):
            return self.weight([e.at[0] for e in shape], dtype)
        return self.input(shape, dtype)

    def shaped(self, shape: Shape, dtype: str, size: float = 1e30) -> Tensor:
        """A tensor of a shape: one that there is, a view of one, an input, a constant."""
        known = [
            x for x in reversed(self.tensors)
            if x.dtype == dtype and same(x.shape, shape) and x.size <= size
        ]  # fmt: skip
        if known and self.draws.chance(0.6):
            return self.draws.pick(known)
        formed = self.forming(self, shape, dtype)
        return self.leaf(shape, dtype) if formed is None else formed

    # Shapes as tensors.

    def spelled(self, shape: Sequence[Extent]) -> Tensor:
        """A tensor of int64 that holds a shape: a constant, or arithmetic on shapes."""
        if all(e.static for e in shape):
            return self.integers([e.at[0] for e in shape])
        for x in self.tensors:
            if same(x.shape, shape) and [e.key for e in x.shape] == [e.key for e in shape]:
                if self.draws.chance(0.5):
                    return self._shape_of(x)
                break
        pieces: list[Tensor] = []
        for extent in shape:
            if extent.static:
                pieces.append(self.integers([extent.at[0]]))
            else:
                pieces.append(self.spelled_one(extent))
        if len(pieces) == 1:
            return pieces[0]
        return self._hidden("Concat", pieces, [static(len(pieces))], axis=0)

    def spells(self, extent: Extent) -> bool:
        """Whether there is a tensor that has an axis of this extent."""
        return extent.static or any(e.key == extent.key for x in self.tensors for e in x.shape)

    def spelled_one(self, extent: Extent) -> Tensor:
        """One extent as a tensor of one element."""
        places = [
            (x, axis) for x in self.tensors for axis, e in enumerate(x.shape) if e.key == extent.key
        ]
        x, axis = self.draws.pick(places)
        one = [ONE]
        kinds = ["gather", "gather scalar", "slice"] + ["start, end"] * (self.opset >= 15)
        kind = self.draws.pick(kinds)
        if kind == "start, end":
            return self._hidden("Shape", [x], one, start=axis, end=axis + 1)
        whole = self._shape_of(x)
        if kind == "gather":
            return self._hidden("Gather", [whole, self.integers([axis])], one, axis=0)
        if kind == "slice" and self.opset >= 10:
            bounds = [self.integers([axis]), self.integers([axis + 1])]
            return self._hidden("Slice", [whole, *bounds], one)
        index = self.constant(np.int64(axis), share=True)
        element = self._hidden("Gather", [whole, index], [], axis=0)
        if self.opset >= 13:
            return self._hidden("Unsqueeze", [element, self.integers([0])], one)
        return self._hidden("Unsqueeze", [element], one, axes=[0])

    def _shape_of(self, x: Tensor) -> Tensor:
        return self._hidden("Shape", [x], [static(x.rank)])

    def _hidden(
        self, op: str, inputs: Sequence[Tensor], shape: Iterable[Extent], **attributes: Any
    ) -> Tensor:
        """Add a node of the arithmetic on shapes, whose result is no operand of others."""
        result = self.new(shape, "int64", 0, MAX_ELEMENTS)
        names = [x.name for x in inputs]
        self.nodes.append(helper.make_node(op, names, [result.name], **attributes))
        return result

    # Ranges of elements.

    def tamed(self, x: Tensor, low: float, high: float) -> Tensor:
        """The tensor, clipped if its elements may be outside a range."""
        if low <= x.low and x.high <= high:
            return x
        low, high = max(low, min(x.low, high)), min(high, max(x.high, low))
        if self.opset >= 11:
            # The limits of Clip have no axes.
            bounds = [self.constant(np.array(v, x.dtype), share=True) for v in (low, high)]
            return self.add("Clip", [x, *bounds], x.shape, x.dtype, low, high)
        if x.dtype != "float32":
            raise DeclinedError("this Clip takes float32 only")
        return self.add("Clip", [x], x.shape, x.dtype, low, high, min=float(low), max=float(high))

    def absolute(self, x: Tensor) -> Tensor:
        if x.low >= 0:
            return x
        return self.add("Abs", [x], x.shape, x.dtype, 0, x.size)

    def positive(self, x: Tensor, least: float) -> Tensor:
        """Elements from `least` on."""
        if x.low >= least:
            return x
        return self.add(
            "Add", [self.absolute(x), self.constant(np.array(least, x.dtype), share=True)],
            x.shape, x.dtype, least, x.size + least,
        )  # fmt: skip

    def bounded(self, x: Tensor, low: float, high: float) -> Tensor:
        """The same tensor with other limits, for those who know better."""
        found = replace(x, low=low, high=high)
        self.tensors = [found if t.name == x.name else t for t in self.tensors]
        return found
