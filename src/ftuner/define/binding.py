"""What a signature says of operands: their dtypes, and the extents that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftuner.core.dim import Dim, Shape, simplest, symbol
from ftuner.core.dtype import BOOL, ELEMENT_DTYPES, FLOAT32, INT64, DType
from ftuner.core.frozen import dataclass
from ftuner.define import elements
from ftuner.define.bounds import Names, dim_of
from ftuner.define.elements import FLOAT, INT, Element, Extent, Number
from ftuner.define.signature import Signature
from ftuner.errors import DTypeError, ShapeError
from ftuner.graph.operator import Require
from ftuner.graph.ops.pointwise import broadcast_shape

KINDS = {FLOAT: ("float",), INT: ("int", "uint")}


@dataclass(frozen=True)
class Binding:
    """Extents and dtypes of a signature, for some operands."""

    names: Names
    """The extents."""
    batch: Shape
    """The axes `...` of all operands together."""
    dtypes: Mapping[str, DType]
    """The dtypes of the types `float` and `int`."""


class Operands:
    """The operands of one operator, by the names of its parameters."""

    def __init__(self, name: str, names: Sequence[str], signature: Signature) -> None:
        self.name, self.names, self.signature = name, names, signature
        self.extents = {
            one.name: symbol(one.name)
            for operand in signature.operands for one in operand.shape if isinstance(one, Extent)
        }  # fmt: skip
        """The extents of the signature as symbols."""

    def binding(
        self, dtypes: Sequence[DType | None], shapes: Sequence[Shape], require: Require
    ) -> Binding:
        """Returns the extents and dtypes for operands. Raises as `dtypes` and `bound`."""
        known = self.dtypes(dtypes)
        return Binding(*self.bound(shapes, require), known)

    def dtypes(self, given: Sequence[DType | None]) -> dict[str, DType]:
        """The dtypes of the types `float` and `int`: without an operand of these, float32 and
        int64.

        Raises:
            DTypeError: dtypes that do not fit the signature.
        """
        found: dict[str, DType] = {}
        for name, one, dtype in zip(self.names, self.signature.operands, given, strict=True):
            what = f"operand {name} of {self.name} is {dtype}"
            if one.type in KINDS:
                if dtype is None or dtype.kind not in KINDS[one.type]:
                    raise DTypeError(f"{what}; the signature says {one.type}")
                if found.setdefault(one.type, dtype) != dtype:
                    raise DTypeError(f"{what}; another is {found[one.type]}")
            elif dtype != ELEMENT_DTYPES[one.type]:
                raise DTypeError(f"{what}; the signature says {one.type}")
        return {FLOAT: FLOAT32, INT: INT64, elements.BOOL: BOOL, **found}

    def bound(self, shapes: Sequence[Shape], require: Require) -> tuple[Names, Shape]:
        """The extents that the signature names, and the shape of `...` of all operands together.

        Raises:
            ShapeError: shapes that do not fit the signature.
        """
        given: dict[str, list[Dim]] = {}
        leads = list[Shape]()
        for name, one, shape in zip(self.names, self.signature.operands, shapes, strict=True):
            lead = len(shape) - len(one.shape)
            if lead < 0 or (lead and not one.batched):
                least = " or more" if one.batched else ""
                what = f"operand {name} of {self.name} has {len(shape)} axes"
                raise ShapeError(f"{what}; expected {len(one.shape)}{least}")
            leads.append(shape[:lead])
            for extent, dim in zip(one.shape, shape[lead:], strict=True):
                if isinstance(extent, Extent):
                    given.setdefault(extent.name, []).append(dim)
        names = {name: simplest(dims) for name, dims in given.items()}
        for name, one, shape in zip(self.names, self.signature.operands, shapes, strict=True):
            for axis, extent in enumerate(one.shape, len(shape) - len(one.shape)):
                wanted = dim_of(extent, names)
                assert wanted is not None
                text = f"axis {axis} of operand {name} of {self.name}{self.signature.text}"
                require(shape[axis], wanted, text)
        return names, broadcast_shape([(), *leads], require, f"operands of {self.name}")

    def symbolic(self, number: int, shape: Sequence[int]) -> Shape:
        """The shape of an operand with symbols for the extents that vary between calls: all but
        those of one element that broadcast."""
        own = self.signature.operands[number].shape
        lead = max(len(shape) - len(own), 0)
        batch = tuple(1 if shape[a] == 1 else symbol(f"batch{lead - a}") for a in range(lead))
        return (*batch, *(self._symbolic(one, f"{self.names[number]}_{a}")
                          for a, one in enumerate(own)))[: len(shape)]  # fmt: skip

    def _symbolic(self, extent: Element, name: str) -> Dim:
        found = dim_of(extent, self.extents) if isinstance(extent, Extent | Number) else None
        return symbol(name) if found is None else found


def expect_equal(x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
    """`Require` of extents that are known."""
    if x != y and not (or_one and 1 in (x, y)):
        raise ShapeError(f"{what}: {x} and {y}")
