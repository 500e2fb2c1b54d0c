"""torch's own samples of its operators (`OpInfo`), as graphs of ATen operators, and what the
references of the imported graphs make of them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ftuner.core.dtype import ELEMENT_DTYPES
from ftuner.errors import UnsupportedOperatorError
from ftuner.frontends.torch.exported import decompositions
from ftuner.frontends.torch.importer import Imported, Output, import_fx
from ftuner.frontends.torch.nodes import called, unsupported
from ftuner.runtime.cpu.arrays import array_of, tensor_of
from ftuner.runtime.random_keys import RandomKeys
from ftuner.runtime.reference import run_reference

# Its messages, which pytest would keep, take longer than the tests.
logging.getLogger("torch.__trace").disabled = True

UNDEFINED = ("empty", "new_empty", "rand_like", "randn")
"""Operators whose elements are whatever memory held, or random."""
ANY_ORDER = ("topk", "sort", "msort", "argsort", "kthvalue", "median", "mode")
"""Operators that choose among equal elements as they like: positions are not compared."""


class Sample(NamedTuple):
    """A function of tensors, and some tensors."""

    name: str
    function: Callable[..., Sequence[Any]]
    operands: tuple[torch.Tensor, ...]


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Sample]:
    """Samples of an `OpInfo`; its other arguments are part of the function."""
    name = f"{op.name}.{op.variant_test_name}".rstrip(".")
    for given in islice(op.sample_inputs("cpu", dtype, requires_grad=False), most):
        arguments = (given.input, given.args, given.kwargs)
        leaves, spec = pytree.tree_flatten(arguments)
        places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

        def function(
            *tensors: torch.Tensor, leaves: Any = leaves, spec: Any = spec, places: Any = places
        ) -> Sequence[Any]:
            whole = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                whole[place] = tensor
            x, args, kwargs = pytree.tree_unflatten(whole, spec)
            return pytree.tree_leaves(op.op(x, *args, **kwargs))

        yield Sample(name, function, tuple(leaves[i].detach() for i in places))


def traced(sample: Sample, whole: bool, symbolic: bool = False) -> fx.GraphModule | None:
    """The graph of a sample: with composite operators as `torch.export` leaves them (`whole`), or
    as AOTAutograd writes it, with what has no importer decomposed. None if torch cannot trace
    it."""
    mode = "symbolic" if symbolic else "fake"
    table = None if whole else _table()
    trace = make_fx(sample.function, table, mode, pre_dispatch=whole, _allow_non_fake_inputs=True)
    try:
        return trace(*sample.operands)
    except Exception:
        return None


@cache
def _table() -> Mapping[Any, Callable[..., Any]]:
    return decompositions()


def missing(module: fx.GraphModule) -> set[str]:
    """The operators of a graph that have no importer."""
    return {called(node) for node in unsupported(module.graph)}


def by_reference(found: Imported, operands: Sequence[torch.Tensor]) -> list[Any]:
    """The outputs of an imported graph."""
    arrays = [array_of(x.contiguous(), "an operand") for x in operands]
    arrays.append(RandomKeys(0).next())
    results = run_reference(found.graph, arrays[: len(found.graph.inputs)])
    return [
        tensor_of(results[leaf.number].copy()) if isinstance(leaf, Output) else leaf
        for leaf in found.outputs
    ]


def outcome(sample: Sample, whole: bool, symbolic: bool = False) -> str:
    """`right`, `refused: why`, `untraced`, `missing: operators`, or what is wrong."""
    with torch.no_grad():
        try:
            expected = sample.function(*(x.clone() for x in sample.operands))
        except Exception:
            return "untraced"
        module = traced(sample, whole, symbolic)
    if module is None:
        return "untraced"
    lacking = missing(module)
    if lacking:
        return f"missing: {' '.join(sorted(lacking))}"
    try:
        got = by_reference(import_fx(module, {}, {}), sample.operands)
    except UnsupportedOperatorError as error:
        return f"refused: {error}"
    for one, other in zip(got, expected, strict=True):
        wrong = difference(sample, one, other)
        if wrong:
            return wrong
    return "right"


def difference(sample: Sample, got: Any, expected: Any) -> str:
    if not isinstance(expected, torch.Tensor) or sample.name.startswith(UNDEFINED):
        return ""
    if not isinstance(got, torch.Tensor):
        return f"{got} for a tensor"
    if sample.name.split(".")[0] in ANY_ORDER and expected.dtype == torch.int64:
        return "" if got.shape == expected.shape else f"{got.shape} for {expected.shape}"
    half = expected.dtype in (torch.float16, torch.bfloat16)
    got = got.to(expected.dtype) if half else got
    try:
        torch.testing.assert_close(got, expected, rtol=2e-4, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def computes_in(dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype have importers."""
    return str(dtype).removeprefix("torch.") in ELEMENT_DTYPES
