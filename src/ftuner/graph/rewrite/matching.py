"""Patterns of graph values, and what they match in a graph.

A pattern is a function in the algebra of graph values: `lambda x: x * sigmoid(x)`. Its parameters
stand for values, numbers or attributes; the same parameter is the same one everywhere. It matches
other spellings, too:

- operands that may be exchanged are, and `a / b` is also `a * (1 / b)`;
- numbers are equal up to a few roundings, but integers in a pattern are exact;
- a polynomial of a value that is known by then is any with the same coefficients;
- a product of a value, a function of it and a number has its factors and divisors in any order;
- a number times a value may be a division by a number;
- `reduce` and `mean` may keep their axes, with extent 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import FLOAT32, DType
from ftuner.core.frozen import dataclass
from ftuner.errors import GraphError
from ftuner.graph.ir import Node, TensorType, Value, building, writing_to
from ftuner.graph.rewrite.arithmetic import ARITHMETIC, combined, gated, is_near, polynomial
from ftuner.graph.rewrite.surroundings import Surroundings, mean, near, reduced, scalar, scaled

Bound = Mapping[Value, Any]
"""What the parts of a pattern stand for: values, numbers and attributes."""
_EXCHANGED = ("add", "multiply", "equal", "minimum", "maximum", "logical_and", "logical_or")
_MAKERS = {"divide": {"divide", "multiply"}, "multiply": {"multiply", "divide", "power"}}
"""The operators of what is also matched in the place of a quotient or product."""
_ANY = TensorType(FLOAT32, ())


@dataclass(frozen=True, eq=False)
class Part(Value):
    """A value of a pattern, of any type."""

    @property
    def shape(self) -> Shape:
        raise GraphError("a pattern has no shapes: write `apply` and the operator")

    def reduce(self, kind: str, axes: Sequence[int], keep: bool = True) -> Value:
        return building().add("reduced", self, kind=kind, axes=axes)

    def mean(self, axes: Sequence[int], keep: bool = True) -> Value:
        return self.reduce("mean", axes)


class _Recorder:
    """What a pattern is written to."""

    where = "a pattern"

    def __init__(self) -> None:
        self.nodes: dict[Value, Node] = {}
        self.numbers: dict[Value, float] = {}
        self.alone: list[Value] = []
        self.names: dict[Value, Value] = {}

    def add(self, op: str, /, *inputs: Value, **attributes: Any) -> Value:
        part = Part(op, _ANY)
        self.nodes[part] = Node(op, inputs, (part,), attributes)
        return part

    def add_many(self, op: str, /, *inputs: Value, **attributes: Any) -> tuple[Value, ...]:
        raise GraphError("a pattern has no operators with several results")

    def scalar(self, value: float, dtype: DType, /) -> Value:
        part = Part(str(value), _ANY)
        self.numbers[part] = value
        return part

    def dims(self, values: Sequence[Dim], shape: Shape, /) -> Value:
        raise GraphError("a pattern has no dims")

    def constant(self, array: Any, dtype: DType | None = None, /) -> Value:
        raise GraphError("a pattern has no constants but numbers")

    def require(self, x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
        raise GraphError("a pattern requires nothing of dims")


def alone(part: Value) -> Value:
    """A part that nothing but the pattern reads."""
    recorder = building()
    assert isinstance(recorder, _Recorder)
    recorder.alone.append(part)
    return part


def named(name: Value, part: Value) -> Value:
    """A part that a parameter of the pattern stands for as well."""
    recorder = building()
    assert isinstance(recorder, _Recorder)
    recorder.names[part] = name
    return part


class Pattern:
    """A pattern, prepared to be searched for.

    Attributes:
        needs: operators without which a graph has no match.
        anchor: the operator of the nodes that a search is asked of.
    """

    def __init__(self, write: Callable[..., Value], kinds: Mapping[str, str]) -> None:
        """`kinds`: the types of the parameters; one without a type is a value."""
        recorder = _Recorder()
        names = signature(write).parameters
        self.parameters: dict[str, Value] = {name: Part(name, _ANY) for name in names}
        with writing_to(recorder):
            self.root = write(**self.parameters)
        self.nodes, self.numbers, self.names = recorder.nodes, recorder.numbers, recorder.names
        self.kinds = {part: kinds.get(n, "Value") for n, part in self.parameters.items()}
        read = [v for node in self.nodes.values() for v in node.inputs]
        self.alone = {v: read.count(v) for v in recorder.alone}
        self.of: dict[Value, frozenset[Value]] = {}
        """What a part is arithmetic of: values, and results of other operators. Numbers are of
        nothing."""
        self.sizes: dict[Value, int] = {}
        for part in (*self.parameters.values(), *self.numbers, *self.nodes):
            node = self.nodes.get(part)
            operands = node.inputs if node is not None else ()
            number = part in self.numbers or self.kinds.get(part) == "float"
            atoms = [] if number else [part]
            if node is not None and node.op in ARITHMETIC:
                atoms = [v for operand in operands for v in self.of[operand]]
            self.of[part] = frozenset(atoms)
            self.sizes[part] = 1 + sum(self.sizes[v] for v in operands)
        self.product = self._product()
        self.needs = {n.op for n in self.nodes.values()} - ARITHMETIC - {"reduced"}
        start = self.nodes[self.root if self.product is None else self.product[0]]
        self._starts = {op: [{"divide"}] for op in _MAKERS if start.op in ("divide", op)}
        self._starts[start.op] = [self._makers(v) for v in start.inputs]
        self.anchor, self._height = self._anchor(start)

    def _anchor(self, start: Node) -> tuple[str, int]:
        """An operator that is rarer than arithmetic, and how far above its nodes `start` is."""
        level = [(start, 0)]
        for node, height in level:
            if node.op not in ARITHMETIC and node.op != "reduced":
                return node.op, height
            more = 2 if node.op == "divide" else 1  # A quotient may be two nodes.
            operands = () if node.op == "reduced" else node.inputs
            level += [(self.nodes[v], height + more) for v in operands if v in self.nodes]
        return start.op, 0

    def starts(self, around: Surroundings, node: Node) -> Iterable[Node]:
        """The nodes at which a search may find something that has a node of operator `anchor`."""
        found, level = [node], [node]
        for _ in range(self._height):
            above = (n for below in level for v in below.outputs for n in around.consumers(v))
            level = [n for n in above if n.op in ARITHMETIC]
            found += level
        return [n for n in dict.fromkeys(found) if n.op in self._starts and self._may(around, n)]

    def _makers(self, part: Value) -> set[str]:
        """The operators that may give a part; nothing if any may."""
        node = self.nodes.get(part)
        polynomial = part not in self.of[part] and len(self.of[part]) == 1
        if node is None or node.op == "reduced" or polynomial:
            return set()
        return _MAKERS.get(node.op, {node.op})

    def _may(self, around: Surroundings, node: Node) -> bool:
        """Whether a search may find something at a node, by what gives its operands."""
        made_by = {maker.op for v in node.inputs if (maker := around.producer_of(v)) is not None}
        return not any(ops and ops.isdisjoint(made_by) for ops in self._starts[node.op])

    def _product(self) -> tuple[Value, Value] | None:
        """(gate, x) if the pattern is a product of a value x, a function of it and numbers."""
        factors, left = list[Value](), [self.root]
        while left:
            part = left.pop()
            node = self.nodes.get(part)
            if node is None or node.op not in ("multiply", "divide"):
                factors.append(part)
            elif node.op == "divide" and self.of[node.inputs[1]]:
                return None
            else:
                left += node.inputs
        gates = sorted((v for v in factors if self.of[v]), key=self.sizes.__getitem__, reverse=True)
        plain = len(gates) == 2 and self.kinds.get(gates[1]) == "Value"
        return (gates[0], gates[1]) if plain and self.sizes[gates[0]] > 1 else None

    def polynomial(
        self, part: Value, bound: Bound, x: Value | None = None
    ) -> tuple[float, ...] | None:
        """The coefficients of arithmetic in x, lowest degree first; None if a number is not known
        by now."""
        if part is x:
            return (0.0, 1.0)
        known = self.numbers.get(part, bound.get(part))
        if isinstance(known, int | float):
            return (float(known),)
        node = self.nodes.get(part)
        parts = [self.polynomial(v, bound, x) for v in node.inputs] if node is not None else [None]
        found = [p for p in parts if p is not None]
        return combined(node.op, found) if node is not None and len(found) == len(parts) else None


class Search(NamedTuple):
    """The search for a pattern in a graph."""

    pattern: Pattern
    around: Surroundings

    def matches(self, node: Node) -> Iterator[tuple[Node, dict[str, Any]]]:
        """The nodes that give the pattern's result, each with what the parameters stand for.
        `node`: of the operator of the pattern's `anchor`."""
        pattern = self.pattern
        for start in pattern.starts(self.around, node):
            for end, bound in self._ends(start):
                counts = pattern.alone.items()
                if all(self.around.read(bound[part]) == count for part, count in counts):
                    yield end, {n: bound[p] for n, p in pattern.parameters.items()}

    def _ends(self, node: Node) -> Iterator[tuple[Node, Bound]]:
        pattern = self.pattern
        if pattern.product is None:
            for bound in self._found(pattern.root, node.output, {}):
                yield node, bound
            return
        gate, of = pattern.product
        for end, x, number in gated(self.around, node.output):
            for bound in self._found(gate, node.output, {of: x}):
                wanted = pattern.polynomial(pattern.root, {**bound, gate: 1.0, of: 1.0})
                if wanted is not None and near(number, wanted[0], x.dtype):
                    yield end, bound

    def _found(self, part: Value, value: Value, bound: Bound) -> Iterator[Bound]:
        """What parts stand for if `part` is `value`."""
        pattern = self.pattern
        of = pattern.of[part]
        if not of:
            number = scalar(value) if value.dtype.kind == "float" else None
            yield from () if number is None else self._number(part, number, value.dtype, bound)
        elif part in bound:
            yield from (bound,) if bound[part] is value else ()
        else:
            if part not in pattern.nodes:
                every = iter((bound,))
            elif part not in of and len(of) == 1 and of <= bound.keys():
                every = self._polynomial(part, value, bound, *of)
            else:
                every = self._node(part, value, bound)
            also = {v: value for v in (part, pattern.names.get(part)) if v is not None}
            yield from ({**found, **also} for found in every)

    def _number(self, part: Value, number: float, dtype: DType, bound: Bound) -> Iterator[Bound]:
        wanted = self.pattern.polynomial(part, bound)
        if wanted is None:
            yield from ({**bound, part: number},) if part in self.pattern.kinds else ()
        elif number == wanted[0] or (
            not isinstance(self.pattern.numbers.get(part), int) and near(number, wanted[0], dtype)
        ):
            yield bound

    def _polynomial(self, part: Value, value: Value, bound: Bound, x: Value) -> Iterator[Bound]:
        pattern = self.pattern
        found = polynomial(self.around, value, bound[x])
        wanted = pattern.polynomial(part, bound, x)
        if wanted is not None:
            yield from (bound,) if is_near(found, wanted, value.dtype) else ()
        elif pattern.nodes[part].op == "multiply" and found is not None and len(found) == 2:
            # A number that is not known yet, times x.
            numbers = [v for v in pattern.nodes[part].inputs if v in pattern.kinds and v is not x]
            yield from ({**bound, v: found[1]} for v in numbers if found[0] == 0)

    def _node(self, part: Value, value: Value, bound: Bound) -> Iterator[Bound]:
        """What parts stand for if a node gives `part`."""
        wanted, node = self.pattern.nodes[part], self.around.producer_of(value)
        if node is None:
            return
        if wanted.op == "reduced":
            kind, axes = wanted.attributes.values()
            over = mean(self.around, value) if kind == "mean" else reduced(self.around, value, kind)
            if over is not None:
                for more in self._attribute(axes, over[1], bound):
                    yield from self._found(wanted.inputs[0], over[0], more)
            return
        if wanted.op == "multiply":
            x, factor = scaled(self.around, value)
            for number, other in (wanted.inputs, wanted.inputs[::-1]):
                if x is not value and not self.pattern.of[number]:
                    for more in self._number(number, factor, x.dtype, bound):
                        yield from self._found(other, x, more)
                    return
        for operands in self._spellings(wanted, node):
            every = [bound]
            for name, attribute in wanted.attributes.items():
                given = node.attributes[name]
                every = [b for more in every for b in self._attribute(attribute, given, more)]
            # Small parts first: they tell soon that a node does not match, and bind numbers.
            pairs = sorted(
                zip(wanted.inputs, operands, strict=True), key=lambda p: self.pattern.sizes[p[0]]
            )
            for more in every:
                yield from self._all(pairs, more)

    def _all(self, pairs: Sequence[tuple[Value, Value]], bound: Bound) -> Iterator[Bound]:
        if not pairs:
            yield bound
            return
        for more in self._found(*pairs[0], bound):
            yield from self._all(pairs[1:], more)

    def _spellings(self, wanted: Node, node: Node) -> Iterator[Sequence[Value]]:
        """The operands of a node as one of the wanted operator."""
        if node.op == wanted.op and len(node.inputs) == len(wanted.inputs):
            yield node.inputs
            if node.op in _EXCHANGED and wanted.inputs[0] is not wanted.inputs[1]:
                yield node.inputs[::-1]
        elif node.op == "multiply" and wanted.op == "divide":
            for x, y in (node.inputs, node.inputs[::-1]):
                inverse = self.around.producer(y, "divide")
                only = inverse is not None and self.around.only_consumer(y) is node
                if inverse is not None and only and scalar(inverse.inputs[0]) == 1:
                    yield x, inverse.inputs[1]
        elif node.op == "power" and wanted.op == "multiply" and len(set(wanted.inputs)) == 1:
            x, exponent = node.inputs
            # Of a number less than zero, other powers are NaN.
            if x.dtype.kind == "float" and scalar(exponent) == 2:
                yield x, x

    def _attribute(self, wanted: Any, given: Any, bound: Bound) -> Iterator[Bound]:
        known = bound.get(wanted, given) if isinstance(wanted, Part) else wanted
        if known == given:
            yield {**bound, wanted: given} if isinstance(wanted, Part) else bound
