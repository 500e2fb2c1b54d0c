"""Indented text, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ftuner.codegen.triton import functions
from ftuner.codegen.triton.functions import Functions
from ftuner.core.access import Access, Kernel, guards, inner_steps, needs
from ftuner.core.cpu.schedule import operand_numbers
from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.schedule import Schedule


class Lines:
    """Lines of a function's body."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Indents what is written within, after `header:`, such as `for i in range(n)`."""
        self.line(header + ":")
        self._depth += 1
        yield
        self._depth -= 1


Dimensions = frozenset[int]
"""The dimensions of a block along which a value differs."""
UNIFORM: Dimensions = frozenset()


@dataclass(frozen=True)
class Term:
    """A value: its name, and the dimensions of the block along which it has elements; none for a
    scalar."""

    name: str
    along: Dimensions


class Frame:
    """The text and the names of arguments of one kernel, shared by all places."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.functions = Functions()
        self.head = Lines()
        """Before the loop over tiles."""
        self.body = Lines()
        self.present = tuple(d for d in (0, 1) if schedule.block[d] > 1)
        self.parameters = {dim: f"n{i}" for i, dim in enumerate(kernel.parameters())}
        self.operands = {n: f"x{i}" for i, n in enumerate(operand_numbers(kernel))}
        self.results = [f"y{i}" for i in range(len(kernel.values))]
        self.checks = kernel.checks()
        self.inner = inner_steps(kernel)
        self.guards = guards(kernel)
        self._constants: dict[int, Term] = {}

    def dim(self, dim: Dim) -> str:
        return str(dim) if isinstance(dim, int) else self.parameters[dim]

    def shape(self, along: Iterable[int]) -> str:
        """Returns the shape of a block with elements along some dimensions."""
        extents = [self.schedule.block[d] if d in along else 1 for d in self.present]
        return f"({', '.join(map(str, extents))}{',' * (len(extents) == 1)})"

    def constant(self, number: int) -> Term:
        """Returns a step that is the same at all places, written before the loop over tiles."""
        found = self._constants.get(number)
        if found is None:
            step = self.kernel.steps[number]
            found = self._constants[number] = Term(f"c{number}", UNIFORM)
            if step.op == "dim" and not isinstance(step.payload, int):
                text = self.dim(step.payload)  # type: ignore[arg-type]
            else:
                assert isinstance(step.payload, (int, float))
                text = functions.number(step.payload, step.dtype)
            self.head.line(f"{found.name} = {text}")
        return found


class Values:
    """The values of steps at one place, each computed once. `outer`: the place outside the loop
    over reduced axes, which has the values that do not depend on these."""

    def __init__(
        self,
        frame: Frame,
        index: Mapping[int, Term],
        masks: Mapping[int, str],
        outer: Values | None = None,
        prefix: str = "v",
    ) -> None:
        """`masks`: the lanes within the edge, for each dimension that has lanes beyond it."""
        self.frame = frame
        self.index = index
        self.masks = masks
        self.stages: list[Term] = [] if outer is None else outer.stages
        self._outer = outer
        self._prefix = prefix
        self._known: dict[int, Term] = {}
        self._inside: dict[int, str] = {}
        """For each checked step, the condition that its index is within the extent."""

    def prepare(self, steps: Iterable[int]) -> None:
        """Writes the values of this place that these steps of the coming loop need."""
        frame = self.frame
        seen: set[int] = set()

        def visit(number: int) -> None:
            if number in seen:
                return
            seen.add(number)
            if number not in frame.inner:
                self.value(number)
                return
            for needed in needs(frame.kernel, number):
                visit(needed)
            for condition, _ in frame.guards[number]:
                visit(condition)

        for number in steps:
            visit(number)

    def elsewhere(self, index: Mapping[int, Term], masks: Mapping[int, str]) -> Values:
        """Returns a place with other indices along some axes."""
        return Values(
            self.frame, {**self.index, **index}, {**self.masks, **masks}, self._outer, "w"
        )

    def value(self, number: int) -> Term:
        if self._outer is not None and number not in self.frame.inner:
            return self._outer.value(number)
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = self._compute(number)
        return found

    def _compute(self, number: int) -> Term:
        frame = self.frame
        step = frame.kernel.steps[number]
        if step.op in ("constant", "dim"):
            return frame.constant(number)
        if step.op in ("index", "stage"):
            return self.index[step.number] if step.op == "index" else self.stages[step.number]
        access = frame.kernel.accesses[number]
        if access is not None:
            return self._load(number, access)
        arguments = [self.value(a) for a in step.arguments]
        along = UNIFORM.union(*(a.along for a in arguments))
        if step.op == "checked":
            return self._checked(number, arguments, along)
        names = [a.name for a in arguments]
        source = frame.kernel.steps[step.arguments[0]].dtype
        if step.op == "cast":
            text = frame.functions.cast(names[0], source, step.dtype)
        elif step.op == "bit_cast":
            text = functions.bit_cast(names[0], source, step.dtype)
        elif step.op == "philox":
            text = frame.functions.philox(*names)
        elif step.op == "normal":
            text = frame.functions.normal(names[0], names[1], step.dtype)
        else:
            text = frame.functions.apply(step.op, names, source)
        return self._named(number, text, along)

    def _named(self, number: int, text: str, along: Dimensions) -> Term:
        if self.frame.kernel.steps[number].dtype == BOOL and not along:
            text = functions.scalar_bool(text)
        name = f"{self._prefix}{number}"
        self.frame.body.line(f"{name} = {text}")
        return Term(name, along)

    def _checked(self, number: int, arguments: Sequence[Term], along: Dimensions) -> Term:
        """Writes a checked index: where it is out of range it is 0 and `status` is set. Loads and
        stores there are masked, because an axis may have no elements."""
        frame = self.frame
        index, extent = (a.name for a in arguments)
        name, inside = f"{self._prefix}{number}", f"inside_{self._prefix}{number}"
        body = frame.body
        body.line(f"{name} = tl.where({index} < 0, {index} + {extent}, {index})")
        within = f"({name} >= 0) & ({name} < {extent})"
        body.line(f"{inside} = {within if along else functions.scalar_bool(within)}")
        body.line(f"{name} = tl.where({inside}, {name}, 0)")
        self._inside[number] = inside
        status = 1 + frame.checks.index(str(frame.kernel.steps[number].payload))
        address = f"status + tl.zeros({frame.shape(along)}, tl.int32)" if along else "status"
        wrong = " & ".join([_not(inside, along), *self._guard(number, along), *self._mask(along)])
        body.line(f"tl.store({address}, {status}, mask={wrong})")
        return Term(name, along)

    def _mask(self, along: Iterable[int]) -> list[str]:
        return [self.masks[d] for d in sorted(along) if d in self.masks]

    def _guard(self, number: int, along: Dimensions) -> list[str]:
        """Returns the conditions under which a step is needed, as far as they are computed without
        more dimensions than the step has."""
        found = []
        for condition, wanted in sorted(self.frame.guards[number]):
            term = self.value(condition)
            if term.along <= along:
                found.append(term.name if wanted else _not(term.name, term.along))
        return found

    def _address(self, base: str, access: Access) -> tuple[str, Dimensions]:
        """Returns the address of each element, and the dimensions along which it differs."""
        frame = self.frame
        terms = [(self.index[a], c) for a, c in enumerate(access.coefficients) if c != 0]
        terms += [(self.value(step), c) for step, c in access.rest]
        along = UNIFORM.union(*(t.along for t, _ in terms))
        parts: dict[Dimensions, list[str]] = {}
        if access.constant != 0:
            parts[UNIFORM] = [frame.dim(access.constant)]
        for term, coefficient in terms:
            text = term.name if coefficient == 1 else f"{term.name} * {frame.dim(coefficient)}"
            parts.setdefault(term.along, []).append(text)
        # Scalars first: they are added once.
        order = sorted(parts, key=lambda d: (len(d), sorted(d)))
        sums = [" + ".join(parts[d]) for d in order]
        return " + ".join([base, *(f"({s})" for s in sums)]), along

    def _checked_by(self, access: Access) -> list[str]:
        """Returns the conditions that all indices from data are within their extents."""
        steps = self.frame.kernel.steps
        found: dict[str, None] = {}

        def visit(number: int) -> None:
            if number in self._inside:
                found.setdefault(self._inside[number])
            elif self._outer is not None and number in self._outer._inside:
                found.setdefault(self._outer._inside[number])
            elif steps[number].op != "load":
                for argument in steps[number].arguments:
                    visit(argument)

        for number, _ in access.rest:
            visit(number)
        return list(found)

    def _load(self, number: int, access: Access) -> Term:
        frame = self.frame
        step = frame.kernel.steps[number]
        address, along = self._address(frame.operands[step.number], access)
        masks = [*self._mask(along), *self._checked_by(access), *self._guard(number, along)]
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        text = functions.from_memory(f"tl.load({address}{mask})", step.dtype)
        return self._named(number, text, along)

    def store(self, result: int) -> None:
        """Writes the store of one result at this place."""
        frame, kernel = self.frame, self.frame.kernel
        number, access = kernel.values[result], kernel.targets[result]
        dtype = kernel.steps[number].dtype
        value = self.value(number)
        address, along = self._address(frame.results[result], access)
        for dimension in sorted(value.along - along):
            address += f" + {lanes(dimension)} * 0"
        along |= value.along
        masks = [*self._mask(along), *self._checked_by(access)]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        name = value.name
        if kernel.combine:
            before = functions.from_memory(f"tl.load({address}{mask})", dtype)
            frame.body.line(f"before = {before}")
            after = frame.functions.combine(kernel.combine, "before", name, dtype)
            frame.body.line(f"after = {after}")
            name = "after"
        frame.body.line(f"tl.store({address}, {functions.to_memory(name, dtype)}{mask})")


def _not(condition: str, along: Dimensions) -> str:
    text = f"({condition} == 0)"
    return text if along else functions.scalar_bool(text)


def lanes(dimension: int) -> str:
    """Returns the name of the lane numbers along a dimension."""
    return f"lanes{dimension}"
