"""Proofs that each element of an output is stored exactly once, and read after that.

Along each axis, the index is a number in mixed radix whose digits are the loop variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ftuner.core.dim import Dim, least_value, symbol
from ftuner.errors import CoverageError, RaceError
from ftuner.tasks.bounds import holds
from ftuner.tasks.claims import Claims, Place
from ftuner.tasks.program import LANES, TASKS, Load, Store, Test, linear, replaced, uses


class Coverage(Claims):
    """Claims on the stores of outputs."""

    def _covered(self, stores: list[tuple[Store, Place]]) -> None:
        """Each statement covers the output, or all together do that differ by constants."""
        groups: dict[object, list[tuple[Store, Place]]] = {}
        for store, place in stores:
            found = self._shape(store, place)
            groups.setdefault(found, []).append((store, place))
        for group in groups.values():
            constants = [self._constants(s, p) for s, p in group]
            if len(set(constants)) == 1:
                # Statements that follow each other, and each cover all.
                for store, place in group:
                    self._covers(store, place, [()] * len(store.index))
                continue
            if len(set(constants)) != len(constants):
                store = group[-1][0]
                raise self.error(CoverageError, store.line, f"{store.array!r} is stored here again")
            for store, place in group:
                self._covers(store, place, list(zip(*constants, strict=True)))
        first, place = stores[0]
        for store, other in stores[1:]:
            along = {v.name for v in other.variables if v.kind == LANES} & {
                v.name for v in place.variables
            }
            if along and self._shape(store, other) != self._shape(first, place):
                raise self.error(
                    RaceError, store.line,
                    f"the lanes loop that stores {store.array!r} in line {first.line} stores it "
                    "here in another way; its iterations have no order",
                )  # fmt: skip
            if self._by_task(store, other) != self._by_task(first, place):
                raise self.error(
                    RaceError, store.line,
                    f"another task stores this element of {store.array!r} in line {first.line}",
                )  # fmt: skip

    def _parts(self, store: Store, place: Place) -> list[tuple[dict[str, Dim], Dim]]:
        """The coefficients of the loop variables, and the constant, along each axis."""
        found = []
        for position in store.index:
            terms: dict[str, Dim] = {}
            rest: Dim = position
            for variable in reversed(place.variables):
                parts = linear(rest, variable.name)
                if parts is None:
                    raise self.error(
                        CoverageError, store.line,
                        f"index {position} of {store.array!r} is not linear in {variable.name}: "
                        "that each element is stored once cannot be decided",
                    )  # fmt: skip
                factor, rest = parts
                if factor != 0:
                    terms[variable.name] = factor
                    rest = rest + factor * variable.begin
            found.append((terms, rest))
        return found

    def _shape(self, store: Store, place: Place) -> object:
        """What statements that may cover an output together have in common."""
        order = {v.name: number for number, v in enumerate(place.variables)}
        return tuple(
            tuple(sorted((order[name], str(c)) for name, c in terms.items()))
            for terms, _ in self._parts(store, place)
        ), tuple((v.kind, str(v.end - v.begin)) for v in place.variables)

    def _constants(self, store: Store, place: Place) -> tuple[Dim, ...]:
        return tuple(rest for _, rest in self._parts(store, place))

    def _by_task(self, store: Store, place: Place) -> object:
        return tuple(
            tuple(sorted((v.name, str(terms[v.name])) for v in place.variables
                         if v.kind == TASKS and v.name in terms))
            for terms, _ in self._parts(store, place)
        )  # fmt: skip

    def _covers(self, store: Store, place: Place, constants: Sequence[Sequence[Dim]]) -> None:
        """Prove that a store covers an output once, with each of some constants."""
        array, line = self._program.array(store.array), store.line
        if place.by_data:
            raise self.error(
                CoverageError, line,
                f"{array.name!r} is stored under a condition on elements; store "
                "where(condition, x, y)",
            )  # fmt: skip
        parts = self._parts(store, place)
        by_name = {v.name: v for v in place.variables}
        for variable in place.variables:
            used = sum(variable.name in terms for terms, _ in parts)
            extent = variable.end - variable.begin
            if used > 1 or (used and any(uses(extent, name) for name in by_name)):
                raise self.error(
                    CoverageError, line,
                    f"{array.name!r}: {variable.name} moves along several axes, or ends where "
                    "another variable says: that each element is stored once cannot be decided",
                )  # fmt: skip
            if not used and extent != 1:
                if variable.kind == TASKS:
                    raise self.error(
                        RaceError, line,
                        f"the tasks of every {variable.name} store the same elements of "
                        f"{array.name!r}; its index does not depend on {variable.name}",
                    )  # fmt: skip
                raise self.error(
                    CoverageError, line,
                    f"{array.name!r} is stored once for each {variable.name}; keep the value in a "
                    "local and store it after the loop",
                )  # fmt: skip
        cuts, inside = set(place.facts), list[Test]()
        for axis, (terms, rest) in enumerate(parts):
            extent = array.shape[axis]
            digits = [(c, by_name[n].end - by_name[n].begin, n) for n, c in terms.items()]
            several = sorted(set(constants[axis]), key=str) if constants[axis] else [rest]
            if len(several) > 1:
                rest, step = self._steps(several, axis, array.name, line)
                digits.append((step, len(several), "the statements"))
            if rest != 0:
                raise self.error(
                    CoverageError, line,
                    f"{array.name!r}, axis {axis}: the first index is {rest}; expected 0",
                )  # fmt: skip
            covered = self._product_of(digits, axis, array.name, line)
            position = store.index[axis]
            cut = Test(extent - 1 - position)
            inside += {cut, Test(position)} & cuts
            cuts -= {*inside}
            if covered == extent:
                continue
            beyond = least_value(covered - extent)
            if cut in place.facts and beyond is not None and beyond >= 0:
                continue
            what = (
                f"{array.name!r}, axis {axis}: indices 0 to {covered} - 1; expected to {extent} - 1"
            )
            self._decide(covered - extent, (), CoverageError, line, f"{what}: a gap")
            if cut not in place.facts:
                self._decide(extent - covered, (), CoverageError, line, f"{what}: too many")
        for test in cuts:
            # What holds for all elements of the output leaves out none.
            if test.exact or not holds(test.dim, place.variables, inside):
                sign = "==" if test.exact else ">="
                raise self.error(
                    CoverageError, line,
                    f"the condition {test.dim} {sign} 0 leaves out elements of {array.name!r}; "
                    "store where(condition, x, y)",
                )  # fmt: skip

    def _steps(self, several: list[Dim], axis: int, name: str, line: int) -> tuple[Dim, Dim]:
        """The first of constants, and the step between them."""
        ordered = sorted(
            several, key=lambda d: (least_value(d) or 0, not isinstance(d, int), str(d))
        )
        step = ordered[1] - ordered[0]
        if any(b - a != step for a, b in pairwise(ordered)):
            raise self.error(
                CoverageError, line,
                f"{name!r}, axis {axis}: stored from {', '.join(map(str, ordered))} on, which are "
                "not evenly apart",
            )  # fmt: skip
        return ordered[0], step

    def _product_of(
        self, digits: list[tuple[Dim, Dim, str]], axis: int, name: str, line: int
    ) -> Dim:
        """The number of indices that some digits number without a gap, from 0 on."""
        left, covered = [d for d in digits if d[1] != 1], 1
        total: Dim = covered
        while left:
            found = next((d for d in left if d[0] == total), None)
            if found is None:
                factor, _, variable = min(left, key=lambda d: least_value(d[0]) or 0)
                gap = least_value(factor - total)
                kind = "a gap" if gap is not None and gap > 0 else "an overlap"
                raise self.error(
                    CoverageError, line,
                    f"{name!r}, axis {axis}: the index moves by {factor} with {variable}, where "
                    f"{total} elements are stored from one to the next: {kind}",
                )  # fmt: skip
            left.remove(found)
            total = total * found[1]
        return total

    # Outputs that are read.

    def _written_before(self, load: Load, place: Place) -> None:
        for store, other in self._stores:
            if store.array == load.array and self._same(store, other, load, place):
                return
        raise self.error(
            RaceError, load.line,
            f"{load.array!r} is read at {', '.join(map(str, load.index))}, which the same task did "
            "not store before, by the same loops and conditions",
        )  # fmt: skip

    def _same(self, store: Store, stored: Place, load: Load, read: Place) -> bool:
        """Whether an earlier statement stored all that a load reads, in the same task."""
        if stored.number >= read.number or len(stored.variables) != len(read.variables):
            return False
        names: dict[str, Dim] = {}
        for a, b in zip(stored.variables, read.variables, strict=True):
            same_end = replaced(a.end - a.begin, names) == b.end - b.begin
            if a.kind != b.kind or not same_end or (a.kind == TASKS and a.name != b.name):
                return False
            names[a.name] = symbol(b.name) + a.begin - b.begin
        index = tuple(replaced(d, names) for d in store.index)
        facts = {Test(replaced(t.dim, names), t.exact) for t in stored.facts}
        return index == load.index and facts <= set(read.facts)
