"""Constant folding: evaluates nodes whose operands are constants, within a budget, while a graph is
built and, of what the builder did not fold, as a pass."""

from __future__ import annotations

from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.errors import GraphError, IndexRangeError
from ftuner.graph.ir import Application, Array, Graph, Node, TensorType, Value
from ftuner.graph.operator import elements_of, reference_results
from ftuner.graph.operators import OPERATORS
from ftuner.graph.rewrite.rule import Rewriting
from ftuner.graph.sources import note_made

MAX_FOLDED_BYTES = 64 << 20
"""Largest constant that folding makes of small ones. A model may ask for any size; larger results
are computed at run time."""
MOST_GROWTH = 4
"""What is made of large constants may take this many times their bytes: weights of convolutions of
any size are transposed, and 8-bit integers become float32."""
FREE_BYTES = 16 << 20
"""Bytes that folding may make in all, in addition to PROPORTION times the model's constants."""
FREE_WORK = 1 << 27
"""Elements that folding may read and write in all, in addition to PROPORTION times those of the
model's constants: a tenth of a second of NumPy."""
PROPORTION = 16
"""Bytes that folding may make for each byte of the model's constants. 8-bit integers that are
widened, shifted and scaled before a product need twelve."""


class Folding:
    """Folds nodes within a budget of bytes and of elements. Nodes beyond it are computed at run
    time."""

    def __init__(self) -> None:
        self._bytes_left = FREE_BYTES
        self._work_left = FREE_WORK

    def allow(self, size: int) -> None:
        """Enlarge the budget for a constant of the model of `size` bytes."""
        self._bytes_left += PROPORTION * size
        self._work_left += PROPORTION * size

    def folded(self, made: Application) -> list[Array] | None:
        """The results of an operator, or None: operands are unknown, or the budget is spent.

        Raises:
            IndexRangeError, GraphError: the elements of its operands are out of range or invalid.
        """
        op, inputs, attributes, types = made
        given = [v.constant for v in inputs if v.constant is not None]
        if len(given) < len(inputs):
            return None
        dims = [d for v in attributes.values() if isinstance(v, tuple) for d in v]
        if not all(isinstance(d, int) for d in [*dims, *(n for t in types for n in t.shape)]):
            return None
        of_large = MOST_GROWTH * sum(x.nbytes for x in given)
        if op == "transpose" and types[0].rank == 2:
            of_large = 0  # Products read a large matrix as it is.
        if max(map(_bytes_of, types)) > max(MAX_FOLDED_BYTES, of_large):
            return None
        operator = OPERATORS[op]
        work = sum(x.size for x in given) + sum(elements_of(t.shape) for t in types)
        if operator.work is not None:
            work += operator.work([v.type for v in inputs], attributes, types)
        if not self.spend(sum(map(_bytes_of, types)), work):
            return None
        operands = [(x, v.type) for x, v in zip(given, inputs, strict=True)]
        try:
            results = reference_results(operator, operands, attributes, types)
        except IndexError as error:
            raise IndexRangeError(str(error)) from None
        except ValueError as error:
            raise GraphError(str(error)) from None
        if op == "transpose":
            note_made(results[0], op, given, perm=attributes["perm"])
        return results

    def spend(self, size: int, work: int) -> bool:
        """Take `size` bytes and `work` elements from the budget; False if less is left."""
        if size > self._bytes_left or work > self._work_left:
            return False
        self._bytes_left -= size
        self._work_left -= work
        return True


def _bytes_of(type_: TensorType) -> int:
    return elements_of(type_.shape) * type_.dtype.itemsize


def _rounds(node: Node) -> bool:
    """Whether a node rounds float32 to bfloat16. A CPU does this where it stores: arrays of
    constants hold bfloat16 as float32, which is not what it has in memory."""
    from_wide = node.op == "cast" and node.inputs[0].dtype == FLOAT32
    return from_wide and node.output.dtype == BFLOAT16


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes of constants by constants.

    Raises:
        IndexRangeError, GraphError: elements of constants are out of range or invalid.
    """
    folding = Folding()
    for value in {v for node in graph.nodes for v in node.inputs}:
        if value.constant is not None:
            folding.allow(value.constant.nbytes)
    new = Rewriting(graph)
    # What has no operands is small to store and may be large to fold.
    for node in (node for node in graph.nodes if node.inputs and not _rounds(node)):
        known = [new.same.get(v, v) for v in node.inputs]
        types = [v.type for v in node.outputs]
        results = folding.folded(Application(node.op, known, node.attributes, types))
        if results is not None:
            for value, result in zip(node.outputs, results, strict=True):
                new.same[value] = Value(value.name, value.type, result)
    return new.rewritten()
