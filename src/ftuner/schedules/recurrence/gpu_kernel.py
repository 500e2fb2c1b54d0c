"""One stage of one step of a recurrent layer as Triton text.

A program has some sequences and some hidden elements, and all gates of them: it multiplies the
state by the recurrent weight, adds the input's part, and computes the cell's expressions. Sums and
expressions are float32; planes are rounded to the dtype of the layer when they are stored.
"""

from __future__ import annotations

from ftuner.codegen.triton.expressions import epilogue_prelude, render_epilogue
from ftuner.codegen.triton.source import (
    LANGUAGE_TYPES,
    TRITON_TYPES,
    Argument,
    Source,
    function_source,
)
from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import Operand, flatten
from ftuner.core.gpu.schedule import RECURRENCE_STAGES, RECURRENCE_WARPS, RecurrenceKernel, turns
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.core.recurrence import Stage

NUMBERS = ("step", "parity", "rows", "x_row", "y_row")
"""The numbers of a launch, in their order: the step of the sequences that is computed, which of two
planes holds the state, the sequences, and the elements from one to the next."""


def recurrence_arguments(kernel: RecurrenceKernel) -> tuple[Argument, ...]:
    """Returns the arguments of a kernel, in their order: x and y at the step, the weight, planes,
    the columns and the lengths if the cell has them, and `NUMBERS`."""
    cell = kernel.cell
    pointer = f"*{TRITON_TYPES[kernel.dtype.name]}"
    found = [
        Argument("x", pointer),
        Argument("y", pointer),
        Argument("weight", pointer, ALIGNMENT_BYTES if kernel.aligned else 1),
        Argument("planes", pointer, ALIGNMENT_BYTES),
    ]
    if cell.columns:
        found.append(Argument("columns", pointer))
    if cell.lengths:
        found.append(Argument("lengths", "*i32"))
    types = {"x_row": "i64", "y_row": "i64"}
    return (*found, *(Argument(name, types.get(name, "i32")) for name in NUMBERS))


def recurrence_source(kernel: RecurrenceKernel) -> Source:
    """Returns the source of a kernel; its arguments are `recurrence_arguments`.

    Planes are matrices of `rows` by `hidden`, one after the other: those of the cell in their
    order, then the other plane of the first, if it takes turns.
    """
    cell, (sequences, across, _) = kernel.cell, kernel.block
    stage = cell.stages()[kernel.stage]
    names = {name for name, _ in stage.results}
    begin, end = stage.gates
    read = _read(stage)
    body = [
        f"blocks = tl.cdiv({kernel.hidden}, {across})",
        f"row = (tl.program_id(0) // blocks * {sequences} + tl.arange(0, {sequences}))",
        f"column = tl.program_id(0) % blocks * {across} + tl.arange(0, {across})",
        f"some = (row < rows)[:, None] & (column < {kernel.hidden})[None, :]",
        "place = row.to(tl.int64)[:, None]",
        f"size = rows.to(tl.int64) * {kernel.hidden}",
        f"at = place * {kernel.hidden} + column[None, :]",
        *_sums(kernel, stage),
    ]
    values = {f"s_{gate}": f"s_{gate}" for gate in cell.gates[begin:end]}
    for number, gate in enumerate(cell.gates):
        name = f"x_{gate}"
        if name in read:
            where = f"x + place * x_row + {number * kernel.hidden} + column[None, :]"
            body.append(f"{name} = tl.load({where}, mask=some, other=0.0).to(tl.float32)")
            values[name] = name
    for number, name in enumerate(cell.columns):
        if name in read:
            where = f"columns + {number * kernel.hidden} + column[None, :]"
            body.append(
                f"{name} = tl.load({where}, mask=(column < {kernel.hidden})[None, :],"
                " other=0.0).to(tl.float32)"
            )
            values[name] = name
    if cell.lengths:
        body.append("valid = (step < tl.load(lengths + row, mask=row < rows, other=0))[:, None]")
    for name in cell.planes:
        if name in read or (name in names and cell.lengths):
            where = f"{_plane(kernel, name)} + at"
            body.append(f"old_{name} = tl.load({where}, mask=some, other=0.0).to(tl.float32)")
            values[name] = f"old_{name}"
    stored = LANGUAGE_TYPES[kernel.dtype.name]
    for name, expr in stage.results:
        rendered = render_epilogue(expr, values, f"{name}_")
        body += [
            *rendered.lines,
            f"new_{name} = tl.broadcast_to({rendered.value}, ({sequences}, {across}))",
        ]
        values[name] = f"new_{name}"
    # Expressions of a stage read what it has computed; what is stored says which sequences go on.
    for name, _ in stage.results:
        result = f"new_{name}"
        if cell.lengths:
            result = f"tl.where(valid, new_{name}, old_{name})"
        where = f"{_plane(kernel, name, following=True)} + at"
        body.append(f"tl.store({where}, ({result}).to({stored}), mask=some)")
    if "h" in names:
        result = "tl.where(valid, new_h, 0.0)" if cell.lengths else "new_h"
        where = "y + place * y_row + column[None, :]"
        body.append(f"tl.store({where}, ({result}).to({stored}), mask=some)")
    return function_source(
        "recurrence",
        epilogue_prelude(*(expr for _, expr in stage.results)),
        recurrence_arguments(kernel),
        body,
        RECURRENCE_WARPS,
        RECURRENCE_STAGES,
    )


def _read(stage: Stage) -> set[str]:
    """The operands that a stage's expressions read of memory."""
    read, written = set(), set[str]()
    for name, expr in stage.results:
        steps = [step.node for step in flatten(expr)]
        read |= {node.name for node in steps if isinstance(node, Operand)} - written
        written.add(name)
    return read


def _plane(kernel: RecurrenceKernel, name: str, following: bool = False) -> str:
    """The address of a plane at this step, or of what the step makes of it."""
    planes = kernel.cell.planes
    if name != "h" or not turns(kernel.cell):
        return f"planes + {planes.index(name)} * size"
    parity = "(1 - parity)" if following else "parity"
    return f"planes + {parity} * {len(planes)} * size"


def _sums(kernel: RecurrenceKernel, stage: Stage) -> list[str]:
    """Lines for the product of the multiplied plane by the weights of the stage's gates."""
    hidden, (sequences, across, k) = kernel.hidden, kernel.block
    begin, end = stage.gates
    gates = list(enumerate(kernel.cell.gates))[begin:end]
    precision = ""
    if kernel.dtype == FLOAT32:
        precision = f', input_precision="{"tf32" if kernel.tf32 else "ieee"}"'
    lines = [f"s_{gate} = tl.zeros(({sequences}, {across}), dtype=tl.float32)" for _, gate in gates]
    lines += [
        f"state_at = {_plane(kernel, stage.multiplied)} + place * {hidden}",
        f"weight_at = weight + column.to(tl.int64)[None, :] * {hidden}",
        f"for begin in range(0, {hidden}, {k}):",
        f"    inner = begin + tl.arange(0, {k})",
        f"    state_mask = (row < rows)[:, None] & (inner < {hidden})[None, :]",
        f"    weight_mask = (inner < {hidden})[:, None] & (column < {hidden})[None, :]",
        "    state = tl.load(state_at + inner[None, :], mask=state_mask, other=0.0)",
    ]
    for number, gate in gates:
        lines += [
            f"    factor = tl.load(weight_at + {number * hidden * hidden} + inner[:, None],"
            " mask=weight_mask, other=0.0)",
            f"    s_{gate} = tl.dot(state, factor, s_{gate}{precision})",
        ]
    return lines
