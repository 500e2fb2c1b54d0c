"""What writers of graphs require of operands, and the errors that name the origin of nodes.

All are of the builder that is being written to; see `Builder.writing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim
from ftuner.errors import GraphError, UnsupportedOperatorError
from ftuner.graph.ir import Value, building
from ftuner.graph.ops.pointwise import broadcast_shape


def origin() -> str:
    """What error messages call the origin of the next nodes."""
    return building().where


def require(x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
    """Require that two dims are equal, now or when they are bound; see `Builder.require`."""
    building().require(x, y, what, or_one)


def expect_shape(x: Value, shape: Sequence[Dim], what: str) -> None:
    """Require that x has a shape.

    Raises:
        GraphError: it has another number of axes.
        ShapeError: an extent is known to be another.
    """
    if x.rank != len(shape):
        count = "one axis" if len(shape) == 1 else f"{len(shape)} axes"
        raise malformed(f"{what}; expected {count}")
    for have, wanted in zip(x.shape, shape, strict=True):
        require(have, wanted, what)


def fitting(x: Value, result: Value, what: str) -> Value:
    """An operand that broadcasts to the shape of a result, which it must not enlarge."""
    text = f"{what} {x.type}, which does not broadcast to {result.type}"
    if x.rank > result.rank:
        raise malformed(text)
    whole = broadcast_shape([x.shape, result.shape], building().require, text)
    for extent, wanted in zip(whole, result.shape, strict=True):
        require(extent, wanted, text)
    return x


def malformed(what: str) -> GraphError:
    """The error that the model is wrong."""
    return GraphError(f"{origin()}: {what}")


def unsupported(what: str) -> UnsupportedOperatorError:
    """The error that ftuner cannot compute `what` of the current node."""
    return UnsupportedOperatorError(f"{origin()}: {what}")
