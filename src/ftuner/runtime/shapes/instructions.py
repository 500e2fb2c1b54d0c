"""Dims as instructions of native code, which evaluates those of a shape in a few microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftuner.codegen.llvm.native.binding_records import OPERATIONS
from ftuner.core.dim import Dim, atoms_of
from ftuner.core.symbolic import WORD_BITS, Atom, Symbol
from ftuner.graph.ir import Constraint

_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}


class Instructions:
    """Instructions on words of an array: the values of dims, those of symbols, then numbers and
    what instructions compute. Each operation is computed once."""

    def __init__(self, dims: Sequence[Dim], names: Sequence[str]) -> None:
        """`names`: of the symbols."""
        numbers = [dim if isinstance(dim, int) and _fits(dim) else 0 for dim in dims]
        self.words = numbers + [0] * len(names)
        """What the array holds before the symbols are written to it."""
        self.first_symbol, self.symbols = len(dims), len(names)
        self.rows: list[tuple[int, int, int, int]] = []
        """An `Instruction` each."""
        self._symbols = {name: number for number, name in enumerate(names, len(dims))}
        self._constants = {
            dim: number for number, dim in enumerate(dims) if isinstance(dim, int) and _fits(dim)
        }
        self._operations: dict[tuple[str, int, int], int] = {}
        self._atoms: dict[Atom, int] = {}
        self._compute_atoms(dims)
        for target, dim in enumerate(dims):
            found = self._of(dim, target)
            if found != target:
                self._add("maximum", found, found, target)
        self.dims = len(self.rows)
        """The instructions of dims; those after them are of what must hold."""

    def bound(self, dims: Iterable[tuple[int, int]]) -> None:
        """Let evaluation fail where a dim, given by number, is negative or more than a limit."""
        for number, limit in dict.fromkeys(dims):
            self._operation("bounded", number, self._constant(limit))

    def demand(self, constraints: Sequence[Constraint]) -> None:
        """Let evaluation fail where a constraint does not hold."""
        self._compute_atoms([side for c in constraints for side in (c.x, c.y)])
        for c in constraints:
            self._operation("equal_or_one" if c.or_one else "equal", self._of(c.x), self._of(c.y))

    def _compute_atoms(self, dims: Sequence[Dim]) -> None:
        for atom in atoms_of(dims):
            if atom not in self._atoms:
                self._atoms[atom] = self._operation(atom.kind, self._of(atom.x), self._of(atom.y))

    def _add(self, operation: str, x: int, y: int, target: int | None) -> int:
        if target is None:
            target = len(self.words)
            self.words.append(0)
        self.rows.append((_NUMBERS[operation], target, x, y))
        return target

    def _operation(self, operation: str, x: int, y: int, target: int | None = None) -> int:
        """The word of a result, which is `target` if nothing has computed it yet."""
        found = self._operations.get((operation, x, y))
        if found is None:
            found = self._operations[operation, x, y] = self._add(operation, x, y, target)
        return found

    def _constant(self, value: int) -> int:
        if not _fits(value):
            # Evaluation fails.
            return self._operation("quotient", self._constant(0), self._constant(0))
        found = self._constants.get(value)
        if found is None:
            found = self._constants[value] = len(self.words)
            self.words.append(value)
        return found

    def _of(self, dim: Dim, target: int | None = None) -> int:
        if isinstance(dim, int):
            return self._constant(dim)
        sums = []
        last = target if len(dim.terms) == 1 else None
        for monomial, coefficient in dim.terms:
            factors = [
                self._symbols[a.name] if isinstance(a, Symbol) else self._atoms[a] for a in monomial
            ]
            # Multiples share the product of what is multiplied.
            if coefficient != 1 or not monomial:
                factors.append(self._constant(coefficient))
            sums.append(self._chain("product", factors, last))
        return self._chain("sum", sums, target)

    def _chain(self, operation: str, operands: Sequence[int], target: int | None) -> int:
        found, *others = operands
        for left, operand in zip(range(len(others) - 1, -1, -1), others, strict=True):
            found = self._operation(operation, found, operand, None if left else target)
        return found


def _fits(value: int) -> bool:
    return value.bit_length() <= WORD_BITS
