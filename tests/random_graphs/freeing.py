"""Cases whose constants of integers and conditions become inputs, and models for which those of a
run become constants.

Shapes, axes, starts, pads, repeats, numbers of iterations and conditions are then known only at run
time. With the constants as inputs the outputs are those of the case, so that its references hold.
"""

from __future__ import annotations

from random import Random

from onnx import helper, numpy_helper
from tests.random_graphs.cases import Case
from tests.random_graphs.tensors import Array

SHARE = 0.5
"""Constants that become inputs, of those that may."""
MOST_ELEMENTS = 16


def _decides(array: Array) -> bool:
    return array.dtype.name in ("int64", "bool") and array.size <= MOST_ELEMENTS


def bound(case: Case, number: int) -> bytes:
    """The model with the small integers and conditions that a run is given as constants."""
    proto = case.proto
    chosen = {name: x for name, x in case.runs[number].items() if _decides(x)}
    kept = [x for x in proto.graph.input if x.name not in chosen]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in chosen.items())
    return proto.SerializeToString()


def freed(case: Case, random: Random) -> Case | None:
    """The case with some constants as inputs; None if it has no such constants."""
    proto = case.proto
    graph = proto.graph
    known: dict[str, Array] = {}
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if _decides(array):
            known[tensor.name] = array
    chosen = {name: x for name, x in known.items() if random.random() < SHARE}
    if not chosen:
        return None
    kept = [tensor for tensor in graph.initializer if tensor.name not in chosen]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for name, x in chosen.items():
        element = helper.np_dtype_to_tensor_dtype(x.dtype)
        graph.input.append(helper.make_tensor_value_info(name, element, x.shape))
    runs = tuple({**feeds, **chosen} for feeds in case.runs)
    return Case(proto.SerializeToString(), runs, case.seed, case.wild)
