"""torch's promotion of element types."""

from __future__ import annotations

from ftuner.core.dtype import BOOL, FLOAT32, INT16, INT32, INT64, UINT8, DType
from ftuner.core.frozen import dataclass
from ftuner.core.symbolic import Symbolic
from ftuner.graph.ir import Value, building


@dataclass(frozen=True)
class Real:
    """A number that is computed from extents: a scalar of float64."""

    value: Value


Number = bool | float | Symbolic | Real
Operand = Value | Number


def _category(dtype: DType) -> int:
    return {"bool": 0, "uint": 1, "int": 1, "float": 2}[dtype.kind]


def dtype_of_number(number: Number) -> DType:
    """The dtype of a tensor that is made of a number."""
    if isinstance(number, bool):
        return BOOL
    return FLOAT32 if isinstance(number, (float, Real)) else INT64


def result_dtype(*operands: Operand) -> DType:
    """The dtype that operands are computed in: the widest of tensors with axes; others, and
    numbers, only count where they are of a higher category."""
    found: DType | None = None
    tensors = [x for x in operands if isinstance(x, Value)]
    for group in ([x for x in tensors if x.rank], [x for x in tensors if not x.rank]):
        joined: DType | None = None
        for x in group:
            joined = x.dtype if joined is None else joined_dtype(joined, x.dtype)
        if joined is not None and (found is None or _category(joined) > _category(found)):
            found = joined
    for number in operands:
        if isinstance(number, Value):
            continue
        own = dtype_of_number(number)
        if found is None or _category(own) > _category(found):
            found = own
    assert found is not None
    return found


def joined_dtype(x: DType, y: DType) -> DType:
    """The dtype of two tensors together."""
    if x == y:
        return x
    if _category(x) != _category(y):
        return x if _category(x) > _category(y) else y
    if x.kind == y.kind:
        if x.itemsize == y.itemsize:
            return FLOAT32  # float16 and bfloat16
        return x if x.itemsize > y.itemsize else y
    from_signed, unsigned = (x, y) if x.kind == "int" else (y, x)
    if from_signed.itemsize > unsigned.itemsize:
        return from_signed
    return {1: INT16, 2: INT32}.get(unsigned.itemsize, INT64)


def valued(x: Operand, dtype: DType) -> Value:
    """An operand as a value of a dtype."""
    if isinstance(x, Real):
        x = x.value
    if isinstance(x, float) and dtype.kind != "float":
        x = bool(x) if dtype == BOOL else int(x)
    return x.cast(dtype) if isinstance(x, Value) else building().scalar(0, dtype).like(x)


def promoted(*operands: Operand, floating: bool = False) -> list[Value]:
    """The operands as values of one dtype. `floating`: integers become float32."""
    dtype = result_dtype(*operands)
    if floating and dtype.kind != "float":
        dtype = FLOAT32
    return [valued(x, dtype) for x in operands]


def counting(x: Value) -> Value:
    """x with booleans as integers, in which they are compared."""
    return x.cast(UINT8) if x.dtype == BOOL else x


def truth(x: Value) -> Value:
    """Whether elements are not zero."""
    return x.cast(BOOL)


def indices(x: Value) -> Value:
    """x as positions."""
    return x if x.dtype in (INT32, INT64) else x.cast(INT64)


def floating(x: Value) -> Value:
    """x with integers as float32."""
    return x if x.dtype.kind == "float" else x.cast(FLOAT32)


def summed(x: Value, dtype: DType | None) -> Value:
    """The dtype that x is summed in: integers are int64."""
    return x.cast(dtype or (x.dtype if x.dtype.kind == "float" else INT64))
