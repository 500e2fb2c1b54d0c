"""From a definition to graph values.

An element becomes a tensor with an axis for each index that it depends on. Sums of products become
matrix products or convolutions where they are such, by the way of `graph.einsum`; all else is
operators on elements, reductions and reads, which the passes of a graph recognise and which are
scheduled and fused as those of any model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL as BOOL_DTYPE
from ftuner.core.dtype import ELEMENT_DTYPES, FLOAT32, INT32, INT64, UINT8, DType
from ftuner.define.binding import Binding
from ftuner.define.bounds import DATA, INSIDE, PADDED, Bounds, Linear, dim_of, linear
from ftuner.define.elements import (
    INDEX,
    NUMBER,
    Apply,
    Element,
    Extent,
    Index,
    Number,
    Read,
    Reduction,
    Tensor,
    kind_of,
)
from ftuner.define.groups import Group, Uses, groups, position_of, uses_of
from ftuner.define.recurrences import Recurrence
from ftuner.define.tracing import Definition, Result
from ftuner.define.windows import convolved
from ftuner.graph.algebra import apply, counted, gather, iota, scalar
from ftuner.graph.einsum import BROADCAST, Term, arranged, contract, summed
from ftuner.graph.ir import Value, building

_UNIT = "\0"
"""The label of a last axis that was reduced, and is kept with extent 1."""
_FIRST_LABEL = 0xE000
"""Labels of indices: Unicode's private characters."""
COMPARED = ("less", "less_equal", "equal")


Scan = Callable[["Lowering", Group, Uses], Sequence[Value]]
"""Adds what goes along an axis of a group: gives what is used of it, whole arrays first."""


def values(
    definition: Definition, operands: Sequence[Value], bounds: Bounds, binding: Binding, scan: Scan
) -> list[Value]:
    """The results of a definition of some operands, in the builder that is being written to.

    Args:
        bounds: of the definition, for the extents of the operands.
        scan: writes recurrences.
    """
    found = Lowering(definition, operands, bounds, binding)
    for group in groups(definition.recurrences, bounds.names, proven=True):
        found.compute(definition, group, scan)
    return [found.array(result, result.batched) for result in definition.results]


class Lowering:
    """The tensors of elements so far."""

    def __init__(
        self, definition: Definition, operands: Sequence[Value], bounds: Bounds, binding: Binding
    ) -> None:
        self.bounds, self.batch, self.name = bounds, binding.batch, definition.name
        self._operands, self._dtypes = operands, binding.dtypes
        self._computed: dict[Tensor, Value] = {}
        self._labels: dict[Index, str] = {}
        self.indices: dict[str, Index] = {}
        """By their labels."""
        self._terms: dict[tuple[Element, DType], Term] = {}
        self._origin = building().where

    def array(self, one: Result | Recurrence, batched: bool) -> Value:
        """All elements of a result, or of an array that does not read itself."""
        labels = "".join(map(self.label, one.index))
        shape = tuple(self.bounds.extent(index) for index in one.index)
        batch = _batch_labels(len(self.batch)) if batched else ""
        term = self.term(one.value, self.dtype(one.type))
        whole = (*self.batch, *shape) if batched else shape
        return arranged(term, batch + labels).broadcast(whole)

    def compute(self, definition: Definition, group: Group, scan: Scan) -> None:
        """Compute the arrays of a group, or what is used of them."""
        if group.axis is None:
            (array,) = group.members
            self._computed[array] = self.array(array, array.batched)
            return
        known = [x for x in definition.recurrences if x in self._computed]
        uses = uses_of(definition, group, self.bounds, known, len(self.batch))
        found = scan(self, group, uses)
        self._computed |= zip(uses.whole, found, strict=False)
        batch = _batch_labels(len(self.batch)) if group.batched else ""
        for one, value in zip(uses.reductions, found[len(uses.whole) :], strict=True):
            at, over = position_of(one, group), {*one.axes}
            labels = [self.label(x) for x in at if isinstance(x, Index) and x not in over]
            self._terms[one, self.dtype(one.type)] = Term(batch + "".join(labels), value)

    def label(self, index: Index) -> str:
        if index not in self._labels:
            found = self._labels[index] = chr(_FIRST_LABEL + len(self._labels))
            self.indices[found] = index
        return self._labels[index]

    def dtype(self, type_: str) -> DType:
        name = {INDEX: INT64.name, NUMBER: FLOAT32.name}.get(type_, type_)
        return self._dtypes.get(name) or ELEMENT_DTYPES[name]

    def term(self, one: Element, dtype: DType | None = None) -> Term:
        """The tensor of an element; a weak one in a given dtype."""
        found = self._kept(one, dtype)
        if not found.labels.endswith(_UNIT):
            return found
        return Term(found.labels[:-1], found.value.squeeze([found.value.rank - 1]))

    def _kept(self, one: Element, dtype: DType | None = None) -> Term:
        """Like `term`, but the last axis of a mean may be kept, with extent 1: what it is
        subtracted from needs it, and norms are recognised by it."""
        own = self.dtype(one.type) if dtype is None or one.type not in (INDEX, NUMBER) else dtype
        if one.type == INDEX and own.kind == "float" and not isinstance(one, Number):
            whole = self.term(one, INT64)
            return Term(whole.labels, whole.value.cast(own))
        found = self._terms.get((one, own))
        if found is None:
            builder = building()
            before = builder.where
            at = one.place or before
            builder.where = f"{self._origin}: {at}" if self._origin else at
            try:
                found = self._terms[one, own] = self._term(one, own)
            finally:
                builder.where = before
        return found

    def _term(self, one: Element, dtype: DType) -> Term:
        match one:
            case Number(value=value):
                return Term("", scalar(value, dtype))
            case Extent() if (dim := dim_of(one, self.bounds.names)) is not None:
                return Term("", building().dims([dim], ()).cast(dtype))
            case Index():
                return Term(self.label(one), iota(self.bounds.extent(one)).cast(dtype))
            case Read():
                return self._read(one)
            case Reduction():
                return self._reduction(one, dtype)
            case Apply():
                return self._applied(one, dtype)
        raise AssertionError(one)

    # Functions of elements.

    def _applied(self, one: Apply, dtype: DType) -> Term:
        function, arguments = one.function, one.arguments
        if one.type == INDEX and (dim := dim_of(one, self.bounds.names)) is not None:
            return Term("", building().dims([dim], ()).cast(dtype))
        if function == "cast":
            inner = self.term(arguments[0], dtype)
            return Term(inner.labels, inner.value.cast(dtype))
        if function == "where":
            padded = self.padded(one)
            if padded is not None:
                return self.term(padded)
            return self.applied("where", self.term(arguments[0]),
                                *(self.term(x, dtype) for x in arguments[1:]))  # fmt: skip
        if function in COMPARED:
            dtype = self.dtype(arguments[0].type)
        terms = [self._kept(x, dtype) for x in arguments]
        if function == "quotient":
            # Python rounds down, and ONNX towards zero: what is left is divided exactly.
            x, y = terms
            if dtype.kind == "float":
                return self.applied("floor", self.applied("divide", x, y))
            if one.type == INDEX and self.bounds.rounds_down(*arguments):
                return self.applied("divide", x, y)
            rest = self.applied("subtract", x, self.applied("remainder", x, y))
            return self.applied("divide", rest, y)
        return self.applied(function, *terms)

    def applied(self, function: str, *terms: Term) -> Term:
        """A function of the table of elements."""
        labels = self.union(terms)
        return Term(labels, apply(function, *(_aligned(term, labels) for term in terms)))

    def union(self, terms: Sequence[Term]) -> str:
        """The labels of some terms, as one has them that has all, or else in the order of their
        indices."""
        every = {label for term in terms for label in term.labels}
        kept = next((t.labels for t in terms if t.labels.endswith(_UNIT)), "")
        if kept and {*kept} == every:
            return kept
        every.discard(_UNIT)
        whole = next((t.labels for t in terms if {*t.labels} == every), None)
        if whole is not None:
            return whole
        batch = [label for label in reversed(BROADCAST) if label in every]
        rest = sorted(every - {*batch}, key=lambda label: self.indices[label].number)
        return "".join((*batch, *rest))

    def padded(self, one: Apply) -> Read | None:
        """A read of which an element takes zeros outside of its tensor, and nothing else: a
        condition of `where` says no more than that."""
        condition, read, other = one.arguments
        if isinstance(other, Apply) and other.function == "cast":
            (other,) = other.arguments
        if not isinstance(read, Read) or not isinstance(other, Number) or other.value != 0:
            return None
        return read if self.bounds.only_bounds(condition, read) else None

    # Reads.

    def forms(self, read: Read) -> list[Linear | None]:
        """The index along each axis as a linear form, if it is one."""
        return [linear(x, self.bounds.names) for x in read.at]

    def operand(self, read: Read) -> tuple[Value, str]:
        """The tensor that is read, and the labels of its batch axes."""
        computed = self._computed.get(read.tensor)
        assert computed is not None or read.tensor.number >= 0
        x = self._operands[read.tensor.number] if computed is None else computed
        return x, _batch_labels(x.rank - len(read.at))

    def _read(self, read: Read) -> Term:
        x, batch = self.operand(read)
        forms, kinds = self.forms(read), self.bounds.kinds(read)
        used = [index for form in forms if form is not None for index in form.coefficients]
        unfit = [
            axis for axis, (form, kind) in enumerate(zip(forms, kinds, strict=True))
            if form is None or kind == PADDED or len(form.coefficients) > 1
            or not all(isinstance(c, int) for c in form.coefficients.values())
        ]  # fmt: skip
        if len(set(used)) == len(used) and len(unfit) <= 1:
            if not unfit:
                return self._sliced(read, forms, unfit, None)
            if kinds[unfit[0]] == DATA:
                at = self._position(read.at[unfit[0]])
                if {*batch, *map(self.label, used)}.isdisjoint(at.labels):
                    return self._sliced(read, forms, unfit, at)
        return self._gathered(read, x, batch, forms)

    def _position(self, one: Element) -> Term:
        """An index that is data, of a dtype that reads have."""
        term = self.term(one, INT64)
        known = term.value.dtype in (INT32, INT64)
        return term if known else Term(term.labels, term.value.cast(INT64))

    def _sliced(
        self, read: Read, forms: Sequence[Linear | None], chosen: Sequence[int], at: Term | None
    ) -> Term:
        """A read of slices along most axes, and of what data chooses along one."""
        x, batch = self.operand(read)
        labels, gone = list(batch), []
        for axis, form in enumerate(forms, len(batch)):
            if at is not None and axis - len(batch) == chosen[0]:
                labels.append("")
                continue
            assert form is not None
            if not form.coefficients:
                x = x.slice(axis, form.constant, 1)
                gone.append(axis)
                labels.append("")
            else:
                ((index, step),) = form.coefficients.items()
                assert isinstance(step, int)
                extent = self.bounds.extent(index)
                # Extents that are required to be equal may be written differently.
                whole = (form.constant, step) == (0, 1) and isinstance(extent, int)
                if not (
                    whole and extent == self.bounds.axis_extent(read.tensor, axis - len(batch))
                ):
                    x = x.slice(axis, form.constant, extent, step)
                labels.append(self.label(index))
        if at is not None:
            axis = len(batch) + chosen[0]
            x = gather(x, at.value, axis)
            labels[axis : axis + 1] = list(at.labels)
            gone = [n if n < axis else n + len(at.labels) - 1 for n in gone]
        kept = tuple(n for i, n in enumerate(x.shape) if i not in gone)
        return Term("".join(labels), x.reshape(kept))

    def _gathered(self, read: Read, x: Value, batch: str, forms: Sequence[Linear | None]) -> Term:
        """A read of any other kind."""
        kinds = self.bounds.kinds(read)
        positions = [
            None if form is not None else self._position(one)
            for form, one in zip(forms, read.at, strict=True)
        ]
        indices = sorted(
            {i for form in forms if form is not None for i in form.coefficients}
            | {self.indices[c] for t in positions if t for c in t.labels if c not in BROADCAST},
            key=lambda i: i.number,
        )
        others = {c for t in positions if t is not None for c in t.labels if c in BROADCAST}
        lead = "".join(c for c in reversed(BROADCAST) if c in others | set(batch))
        labels = lead + "".join(map(self.label, indices))
        shape = (
            *(self.batch[len(self.batch) - 1 - int(c)] for c in lead),
            *map(self.bounds.extent, indices),
        )
        starts: list[Dim] = [0] * x.rank
        steps: list[Dim] = []
        for axis, label in enumerate(batch):
            varies = x.shape[axis] != 1
            steps += [int(varies and label == other) for other in labels]
        chosen, given = [], []
        for axis, (form, position) in enumerate(zip(forms, positions, strict=True), len(batch)):
            if form is None:
                assert position is not None
                chosen.append(axis)
                given.append(_aligned(position, labels, whole=True))
                steps += [0] * len(labels)
                continue
            starts[axis] = form.constant
            steps += [0] * len(lead)
            steps += [form.coefficients.get(index, 0) for index in indices]
        padded, inside = (
            tuple(len(batch) + a for a, kind in enumerate(kinds) if kind == wanted)
            for wanted in (PADDED, INSIDE)
        )
        found = apply(
            "read", x, *given, shape=shape, starts=tuple(starts), steps=tuple(steps),
            chosen=tuple(chosen), inside=inside, padded=padded, node=building().where,
        )  # fmt: skip
        return Term(labels, found)

    # Reductions.

    def _reduction(self, one: Reduction, dtype: DType) -> Term:
        axes = "".join(map(self.label, one.axes))
        if one.kind == "sum" and kind_of(one.type) == "float":
            return self._sum(one.body, axes, dtype)
        body = self.whole(self.term(one.body, None if one.kind[:3] == "arg" else dtype), axes)
        positions = [body.labels.index(label) for label in axes]
        left = "".join(label for label in body.labels if label not in axes)
        value = body.value
        if one.kind in ("any", "all"):
            kind = "maximum" if one.kind == "any" else "minimum"
            value = value.cast(UINT8).reduce(kind, positions, keep=False).cast(BOOL_DTYPE)
        elif one.kind in ("argmax", "argmin"):
            value = apply("arg_reduce", value, kind=one.kind, axis=positions[0], last=False)
        elif one.kind == "mean":
            wide = value.wide()
            count = counted(map(self.bounds.extent, one.axes), wide.dtype)
            last = positions == [body.value.rank - 1]
            value = (wide.reduce("sum", positions, keep=last) / count).cast(value.dtype)
            left += _UNIT * last
        else:
            value = value.wide().reduce(one.kind, positions, keep=False).cast(value.dtype)
        return Term(left, value)

    def whole(self, term: Term, axes: str) -> Term:
        """A term with all axes that it is reduced over, and with their extents."""
        missing = "".join(label for label in axes if label not in term.labels)
        if not missing:
            return term
        labels = term.labels + missing
        value = _aligned(term, labels, whole=True)
        extents = [self.bounds.extent(self.indices[label]) for label in missing]
        return Term(labels, value.broadcast((*term.value.shape, *extents)))

    def _sum(self, body: Element, axes: str, dtype: DType) -> Term:
        """The sum of an element over axes. Factors that do not depend on them are multiplied
        afterwards."""
        if isinstance(body, Apply) and body.function == "negative":
            return self.applied("negative", self._sum(body.arguments[0], axes, dtype))
        if isinstance(body, Apply) and body.function == "divide":
            over, under = body.arguments
            if not self._depends(under, axes):
                return self.applied("divide", self._sum(over, axes, dtype), self.term(under, dtype))
        factors = _factors(body)
        inner = [x for x in factors if self._depends(x, axes)]
        outer = [x for x in factors if not self._depends(x, axes)]
        if not inner or dtype.kind != "float" or len(factors) == 1:
            return self._reduced(self.term(body, dtype), axes)
        found = None
        if len(inner) == 2:
            found = convolved(self, inner, axes) or convolved(self, inner[::-1], axes)
        if found is None:
            found = self._product([self.term(x, dtype) for x in inner], axes)
        return reduce(
            lambda x, y: self.applied("multiply", x, y), [self.term(x, dtype) for x in outer], found
        )

    def _depends(self, one: Element, axes: str) -> bool:
        return any(self.label(index) in axes for index in one.free)

    def _reduced(self, term: Term, axes: str) -> Term:
        term = self.whole(term, axes)
        dtype = term.value.dtype
        wide = Term(term.labels, term.value.wide())
        found = summed(wide, {*wide.labels} - {*axes})
        return Term(found.labels, found.value.cast(dtype))

    def _product(self, terms: list[Term], axes: str) -> Term:
        """The sum of a product: factors that spread over others are multiplied with these, and two
        at a time are contracted."""
        terms = self._merged(terms)
        every = {label for term in terms for label in term.labels}
        terms[0] = self.whole(terms[0], "".join(x for x in axes if x not in every))
        kept = every - {*axes}
        while len(terms) > 1:
            a, b, *rest = terms
            needed = kept | {label for term in rest for label in term.labels}
            shared = {*a.labels} & {*b.labels}
            rows, columns = ({*x.labels} - shared & needed for x in (a, b))
            # A batch of products of a vector is bound by memory: its nest needs no copies.
            matrices = (rows and columns) or ((rows or columns) and not shared & needed)
            if matrices and shared - needed:
                joined = contract(a, b, needed)
            else:
                joined = summed(self.applied("multiply", a, b), needed)
            terms = [joined, *rest]
        return self._reduced(terms[0], "".join(x for x in axes if x in terms[0].labels))

    def _merged(self, terms: list[Term]) -> list[Term]:
        left = sorted(terms, key=lambda term: -len(term.labels))
        found: list[Term] = []
        for term in left:
            fitting = [n for n, other in enumerate(found) if {*term.labels} <= {*other.labels}]
            if fitting and len(left) > 2:
                found[fitting[-1]] = self.applied("multiply", found[fitting[-1]], term)
            else:
                found.append(term)
        return found


def _factors(one: Element) -> list[Element]:
    """The factors of a product of floats, however it is nested."""
    if isinstance(one, Apply) and one.function == "multiply" and kind_of(one.type) == "float":
        return [factor for argument in one.arguments for factor in _factors(argument)]
    return [one]


def _batch_labels(count: int) -> str:
    return BROADCAST[:count][::-1]


def _aligned(term: Term, labels: str, whole: bool = False) -> Value:
    """The tensor with its axes in the order of some labels, and axes of one element for those that
    it lacks: with `whole`, also for the first ones, which broadcasting adds."""
    if term.labels.endswith(_UNIT) and _UNIT not in labels:
        if labels[-1] not in term.labels:
            term = Term(term.labels[:-1] + labels[-1], term.value)
        else:
            term = Term(term.labels[:-1], term.value.squeeze([term.value.rank - 1]))
    held = [label for label in labels if label in term.labels]
    value = term.value.transpose([term.labels.index(label) for label in held])
    first = labels.index(held[0]) if held and not whole else 0
    wanted = labels[first:] if held or whole else ""
    return value.unsqueeze([i for i, label in enumerate(wanted) if label not in term.labels])
