"""Plans made ahead as a saved model has them, so that loading it plans nothing.

A kept plan has no addresses: those within its records are relative to their beginning, its covers
have numbers, and the functions that it calls are those of its library.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ftuner.planner.cpu.plan import Problem
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.plan_records import (
    Encoded,
    Functions,
    Strides,
    kept_covers,
    known_covers,
    moved,
)
from ftuner.runtime.cpu.products import PlannedRanges, Products
from ftuner.ukernels.cpu.library import LibraryName


class KeptPlans(NamedTuple):
    """The plans of a program's products with weights, for ranges of rows."""

    firsts: tuple[int, ...]
    """The first rows of the ranges."""
    products: tuple[tuple[Any, ...], ...]
    """The library, the problem and the strides of each product."""
    numbers: Array
    """The number of the plan of each product and range."""
    plans: Array
    """The number of slots of each plan, and what `Encoded` has besides its records."""
    slots: Array
    """Those of all plans, one after the other."""
    covers: tuple[tuple[str, Array], ...]
    """The family and the `AllCovers` of each number in a plan."""


def kept_plans(planned: Sequence[PlannedRanges]) -> KeptPlans:
    """The plans of several products for the same ranges, without addresses."""
    plans: dict[tuple[Any, ...], int] = {}
    covers: dict[tuple[Any, ...], int] = {}

    def number(products: Products, address: int) -> int:
        """The number of covers."""
        family, table = products.range_covers[address]
        key = products.name, family, kept_covers(table).tobytes()
        return covers.setdefault(key, len(covers))

    rows = []
    for products, _, _, _, found in planned:
        numbers: dict[int, int] = {}
        for encoded in found:
            if encoded.address not in numbers:
                records = array("q", encoded.records)
                cover = partial(number, products)
                moved(records, encoded.address, 0, Functions(reduce=0, widen=1, finish=0), cover)
                key = products.name, records.tobytes(), *encoded[2:]
                numbers[encoded.address] = plans.setdefault(key, len(plans))
        rows.append([numbers[encoded.address] for encoded in found])
    slots = [np.frombuffer(key[1], np.int64) for key in plans]
    sizes = [(len(found), *key[2:]) for found, key in zip(slots, plans, strict=True)]
    return KeptPlans(
        planned[0].firsts,
        tuple((*x.products.name, tuple(x.problem), tuple(x.strides)) for x in planned),
        np.array(rows, np.int32),
        np.array(sizes, np.int64),
        np.concatenate(slots),
        tuple((family, np.frombuffer(table, np.int32)) for _, family, table in covers),
    )


def know_plans(kept: KeptPlans, products: Mapping[LibraryName, Products]) -> None:
    """Have products of libraries find plans that were kept."""
    # A copy: products outlive the model, whose file they would otherwise keep mapped.
    placed = _Placed(kept._replace(slots=kept.slots.copy()))
    for (*name, problem, strides), numbers in zip(kept.products, kept.numbers, strict=True):
        own = products[LibraryName(*name)]
        by_row = dict(zip(kept.firsts, numbers.tolist(), strict=True))
        key = Problem(*problem), Strides(*strides)
        own.kept.add(key, partial(placed.plan, own, by_row))


class _Placed:
    """Kept plans, which get addresses when they are first needed."""

    def __init__(self, kept: KeptPlans) -> None:
        self._kept = kept
        self._plans = kept.plans.tolist()
        self._ends = list(accumulate(size for size, *_ in self._plans))
        self._made: dict[int, Encoded] = {}
        self._covers: dict[int, int] = {}
        """Addresses by number."""

    def plan(self, products: Products, numbers: Mapping[int, int], rows: int) -> Encoded | None:
        """The plan of a product for the range that begins with some rows; None if none was kept.
        `numbers`: of its plans, by those rows."""
        number = numbers.get(rows)
        if number is None:
            return None
        found = self._made.get(number)
        if found is None:
            size, workspace_bytes, workers, together = self._plans[number]
            end = self._ends[number]
            records = array("q", self._kept.slots[end - size : end].tobytes())
            address = records.buffer_info()[0]
            cover = partial(self._cover, products)
            moved(records, 0, address, products.compiled.functions, cover)
            found = Encoded(records, address, workspace_bytes, workers, bool(together))
            self._made[number] = found
        return found

    def _cover(self, products: Products, number: int) -> int:
        """The address of covers."""
        address = self._covers.get(number)
        if address is None:
            family, kept = self._kept.covers[number]
            table = known_covers(kept, products.compiled.kernels[family])
            address = self._covers[number] = products.add_range_covers(family, table)
        return address
