"""Ensembles of trees in LLVM IR.

A task is a block of rows. Rows walk down the trees one after the other, `WALKS` at a time, each
without branches: the loads of a walk depend on each other, those of several walks do not. Walks are
numbered tree by tree, so that rows share the nodes of a tree in L1; a single row walks down as many
trees at a time.

`dims` holds `TreesStep.parameters()`; `buffers` the table, `schedules.trees.step.node_records`,
and the leaves.
"""

from __future__ import annotations

from functools import reduce

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, begun, const, scalar_type
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType

WALKS = 12
"""Walks at a time. On AMD Zen 4 the fastest of 4, 8, 12 and 16; each has a node and a row, which
more registers than there are would hold."""


def emit(
    module: ir.Module, symbol: str, dtype: DType, missing: bool, levels: int, rows_of_task: int
) -> None:
    """Add the kernel to a module. `missing`: whether nodes say where NaN goes; `levels`: steps down
    between two looks at whether all walks have ended."""
    b, (buffers, dims, _, _, begin, end) = begun(module, STEP_KERNEL_TYPE, symbol)
    element, words = scalar_type(dtype), dtype.itemsize // 4
    record = (words + 4) // 2 * 2
    x, nodes, leaves = b.pointer_slots(buffers, *range(3))
    rows, columns, trees, offset = b.slots(dims, *range(4))
    x = b.gep(x, [offset], source_etype=element)

    def field(node: ir.Value, number: int) -> ir.Value:
        at = b.gep(nodes, [b.add(b.mul(node, record), number)], source_etype=I32)
        return b.load(at, typ=element if number == 0 else I32, align=4)

    def following(node: ir.Value, row: ir.Value) -> ir.Value:
        column = field(node, words)
        asked = None
        if missing:
            asked = b.icmp_signed("<", column, ir.Constant(I32, 0))
            column = b.and_(column, ir.Constant(I32, 0x7FFFFFFF))
        number = b.load(b.gep(row, [b.zext(column, I64)], source_etype=element), typ=element)
        no = b.fcmp_unordered("<", field(node, 0), number)
        if asked is not None:
            none = b.fcmp_unordered("uno", number, number)
            no = b.and_(no, b.not_(b.and_(none, asked)))
        return b.add(b.sext(field(node, words + 1), I64), b.zext(no, I64))

    with b.counted_loop(begin, end) as task:
        first = b.mul(task, rows_of_task)
        count = b.minimum(b.sub(rows, first), rows_of_task)
        last = b.sub(trees, 1)
        walks = b.mul(trees, count)
        entry = b.block
        look, walk, down, done = (
            b.append_basic_block(f"walks.{name}") for name in ("look", "walk", "down", "done")
        )
        b.branch(look)
        b.position_at_end(look)
        started, tree, row = (b.phi(I64) for _ in range(3))
        for phi in (started, tree, row):
            phi.add_incoming(const(0), entry)
        b.cbranch(b.icmp_signed("<", started, walks), walk, done)
        b.position_at_end(walk)
        roots, starts, places = [], [], []
        at_tree, at_row = tree, row
        for _ in range(WALKS):
            # Beyond the last tree, walks down that are repeated.
            root = b.minimum(at_tree, last)
            own = b.add(first, at_row)
            roots.append(root)
            starts.append(b.gep(x, [b.mul(own, columns)], source_etype=element))
            places.append(b.gep(leaves, [b.add(b.mul(own, trees), root)], source_etype=I32))
            at_row = b.add(at_row, 1)
            wraps = b.icmp_signed("==", at_row, count)
            at_row = b.select(wraps, 0, at_row)
            at_tree = b.add(at_tree, b.zext(wraps, I64))
        b.branch(down)
        b.position_at_end(down)
        nodes_of = [b.phi(I64) for _ in roots]
        for phi, root in zip(nodes_of, roots, strict=True):
            phi.add_incoming(root, walk)
        reached: list[ir.Value] = list(nodes_of)
        for _ in range(levels):
            reached = [following(n, s) for n, s in zip(reached, starts, strict=True)]
        for phi, node in zip(nodes_of, reached, strict=True):
            phi.add_incoming(node, down)
        found = [field(node, words + 2) for node in reached]
        ended = b.icmp_signed(">=", reduce(b.or_, found), ir.Constant(I32, 0))
        store = b.append_basic_block("walks.store")
        b.cbranch(ended, store, down)
        b.position_at_end(store)
        for leaf, place in zip(found, places, strict=True):
            b.store(leaf, place)
        started.add_incoming(b.add(started, WALKS), store)
        tree.add_incoming(at_tree, store)
        row.add_incoming(at_row, store)
        b.branch(look)
        b.position_at_end(done)
    b.ret_void()
