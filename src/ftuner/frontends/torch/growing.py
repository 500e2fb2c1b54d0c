"""Traces modules for any extents: torch takes those of 0 and 1 in example inputs for constants, so
that they grow."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any

import sympy
import torch
from torch import nn
from torch.export import ExportedProgram

from ftuner.errors import ExportError, FTunerError
from ftuner.frontends.torch.dims import Branch, branches_of, expression_of
from ftuner.frontends.torch.tracing import extents_kept, whole_numbers, without_updates

_LOG = logging.getLogger(__name__)

Shape = dict[int, Any]
"""The dynamic shape of a tensor, as `torch.export` takes it: a dim by the number of an axis."""
LEAST_DISTINCT = 3
"""Least extent in place of 0 or 1, which torch takes for constants."""
MOST_TRIES = 3
"""Programs that are traced until larger extents take all branches as those that were given."""
INSTEAD = (
    "it has no branches on data: torch.compile(module, backend='ftuner') leaves these to PyTorch"
)


def traced(
    module: nn.Module, name: str, given: Sequence[torch.Tensor], shapes: Sequence[Shape]
) -> ExportedProgram:
    """The program for example inputs whose dynamic extents of 0 or 1 are larger; where the module
    does not run on such, or takes other branches, for those that were given.

    Args:
        module: takes the tensors and nothing else.
        name: of the module, for messages.

    Raises:
        ExportError: `torch.export` fails, or the module does.
    """
    small = dict.fromkeys(
        key for x, shape in zip(given, shapes, strict=True) for axis, dim in shape.items()
        if x.shape[axis] < 2 and (key := _key(axis, dim)) is not None
    )  # fmt: skip
    attempts: list[list[object]] = [list(small)]
    if len(small) > 1:
        attempts += [[key] for key in small]
    best: ExportedProgram | None = None
    grown: list[object] = []
    for number, keys in enumerate(attempts if small else ()):
        try:
            best = _of_same_branches(module, name, given, [*grown, *keys], shapes)
        except ExportError as error:
            _LOG.info("extents of 1 stay as they are: %s", error)
            continue
        if number == 0:
            break
        grown += keys
    return best or _traced(module, name, given, shapes)


def _key(axis: int, dim: object) -> object | None:
    """What dims that grow together have in common; None for those that do not grow."""
    if isinstance(dim, torch.export.Dim):
        derived = hasattr(dim, "root")
        return None if derived or dim.max < 2 * LEAST_DISTINCT else dim.__name__
    return axis if dim in (torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC) else None


def _of_same_branches(
    module: nn.Module, name: str, given: Sequence[torch.Tensor], keys: Sequence[object],
    shapes: Sequence[Shape],
) -> ExportedProgram:  # fmt: skip
    """The program for tensors that grow along some dims, and that take the branches which they take
    as they are. Where the length of a mask is compared with that of a cache and its query, the
    query grows, and so must the mask.

    Raises:
        ExportError: as of `traced`, or no such extents are found.
    """
    extents, what = _grown(given, shapes, keys), ""
    for _ in range(MOST_TRIES):
        tensors = [
            x if list(x.shape) == wanted
            else x.expand(wanted).contiguous()
            if all(n in (1, m) for n, m in zip(x.shape, wanted, strict=True))
            else x.new_zeros(wanted)
            for x, wanted in zip(given, extents, strict=True)
        ]  # fmt: skip
        program = _traced(module, name, tensors, shapes)
        dims = extents_of(program)
        for (i, axis), dim in dims.items():
            if dim.is_number and int(dim) != given[i].shape[axis]:
                raise ExportError(f"an extent of {dim} is a constant")
        symbols = {place: dim for place, dim in dims.items() if dim.is_Symbol}
        values = {dim: given[i].shape[axis] for (i, axis), dim in symbols.items()}
        wrong = next((b for b in branches_of(program) if not _holds(b, values)), None)
        if wrong is None:
            return program
        what = wrong.what
        now = {dim: extents[i][axis] for (i, axis), dim in symbols.items()}
        symbol, added = _compensation(wrong, values, now)
        for (i, axis), dim in symbols.items():
            if dim == symbol:
                extents[i][axis] += added
    raise ExportError(f"larger extents take other branches: {what}")


def extents_of(program: ExportedProgram) -> dict[tuple[int, int], sympy.Expr]:
    """Each extent of the inputs, by the number of the input and the axis."""
    nodes = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
    return {
        (i, axis): expression_of(extent)
        for i, user in enumerate(program.graph_signature.user_inputs)
        for axis, extent in enumerate(nodes[str(user)].meta["val"].shape)
    }


def _holds(branch: Branch, values: Mapping[sympy.Symbol, int]) -> bool:
    return bool(branch.condition.xreplace(values) != sympy.false)


def _compensation(
    branch: Branch, given: Mapping[sympy.Symbol, int], now: Mapping[sympy.Symbol, int]
) -> tuple[sympy.Symbol, int]:
    """A symbol that has not grown, and what is to be added to it so that both sides of a comparison
    differ by as much as before.

    Raises:
        ExportError: there is none.
    """
    condition: Any = branch.condition
    if isinstance(condition, sympy.core.relational.Relational):
        difference = sympy.expand(condition.lhs - condition.rhs)
        missing = difference.xreplace(given) - difference.xreplace(now)
        for symbol in sorted(difference.free_symbols, key=str):
            factor = difference.coeff(symbol)
            if factor and now[symbol] == given[symbol] and missing / factor > 0:
                return symbol, int(missing / factor)
    raise ExportError(f"larger extents take another branch: {branch.what}")


def _grown(
    tensors: Sequence[torch.Tensor], shapes: Sequence[Shape], keys: Sequence[object]
) -> list[list[int]]:
    """The extents of tensors, of which those of 0 and 1 along certain dims are larger, and differ
    from all others."""
    taken = {n for x in tensors for n in x.shape}
    odd = (n for n in count(LEAST_DISTINCT, 2) if n not in taken)
    extents = dict(zip(keys, odd, strict=False))
    found = [list(x.shape) for x in tensors]
    for wanted, shape in zip(found, shapes, strict=True):
        for axis, dim in shape.items():
            key = _key(axis, dim)
            if wanted[axis] < 2 and key in extents:
                wanted[axis] = extents[key]
    return found


def _traced(
    module: nn.Module, name: str, tensors: Sequence[torch.Tensor], shapes: Sequence[Shape],
    changing: Collection[str] = (),
) -> ExportedProgram:  # fmt: skip
    """Returns what `torch.export` makes. Buffers of one integer are constants, but those that are
    `changing`. Raises as `traced`."""
    buffers = {k: x for k, x in module.named_buffers() if k not in changing}
    numbers = whole_numbers(buffers)
    try:
        with torch.no_grad(), extents_kept([*numbers.values()]), warnings.catch_warnings():
            # A recurrent layer has its weights in an attribute, too.
            warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)
            found = torch.export.export(
                module, tuple(tensors), dynamic_shapes=(tuple(shapes),), strict=False
            )
        written = numbers.keys() & found.graph_signature.buffers_to_mutate.values()
        if written:
            return _traced(module, name, tensors, shapes, written)
        without_updates(found.graph)
        return found
    except FTunerError:
        raise
    except Exception as error:  # The module, and torch, raise anything.
        what = f"{type(error).__name__}: {error}"
        raise ExportError(
            f"torch.export makes no program of {name}: {what[:1000]}; {INSTEAD}"
        ) from error
