"""What really ran: cells of programs and products, noted when native code has returned."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.coverage.cells import Cell, kernel_cells, layout_of, plan_cells
from tests.coverage.templates import VARIANTS

import ftuner.graph.lowering as lowering
import ftuner.runtime.cpu.executable as compiled
from ftuner.core.expr import Expr
from ftuner.core.expr import operands as operands_of
from ftuner.core.product import ProductTypes
from ftuner.graph.epilogue import Epilogue
from ftuner.graph.ir import Graph, Node
from ftuner.graph.placement import Placement
from ftuner.graph.splitting import divided
from ftuner.graph.steps import Lowered
from ftuner.planner.cpu.plan import Plan
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.program import BoundProgram
from ftuner.runtime.model import Model
from ftuner.schedules.attention.step import AttentionStep
from ftuner.schedules.nest.step import NestStep
from ftuner.schedules.product.step import PendingProduct
from ftuner.schedules.top_k.step import TopKStep


class Recorder:
    """Cells that were executed while a recording goes on, and when."""

    def __init__(self) -> None:
        self.cells: set[Cell] = set()
        self._noted: set[Cell] = set()
        """Of the graph that is being lowered."""
        self._plans: dict[int, tuple[Plan, ProductTypes, Expr]] = {}
        """By the address of their records."""

    def note_node(self, node: Node, placement: Placement) -> None:
        """What a node is of, and how its operands lie before it is lowered."""
        self._noted.update(_node_cells(node))
        for number, value in enumerate(node.inputs):
            layout = layout_of(placement.form(value))
            if layout is not None:
                self._noted.add(("operand", node.op, str(number), layout))

    def note_epilogue(self, node: Node, position: int, before: Epilogue, after: Epilogue) -> None:
        how = "alone" if len(node.inputs) == 1 else "a number"
        if len(after.operands) > len(before.operands):
            (name,) = {o.name for o in operands_of(after.expr)} - {
                o.name for o in operands_of(before.expr)
            }
            kinds = {o.name: o.kind for o in operands_of(after.expr)}
            how = kinds[name]
        side = "" if len(node.inputs) == 1 else (" behind" if position == 0 else " in front")
        self._noted.add(("epilogue", str(node.output.dtype), node.op, how + side))

    def noted(self, found: Lowered, vector_bytes: int) -> frozenset[Cell]:
        """The cells of a graph, from its nodes and its steps."""
        cells, self._noted = self._noted, set()
        for step in found.steps:
            if isinstance(step, NestStep):
                cells.update(kernel_cells(step.kernel, vector_bytes))
            elif isinstance(step, AttentionStep):
                mask = "none" if step.mask is None else str(step.mask.layout.dtype)
                causal = "plain" if step.softmax.causal is None else "causal"
                cells.add(("attention", str(step.q.layout.dtype), mask, causal))
            elif isinstance(step, TopKStep):
                which = "largest" if step.largest else "smallest"
                cells.add(("order", str(step.x.layout.dtype), which))
        return frozenset(cells)

    def planned(self, address: int, plan: Plan, types: ProductTypes, epilogue: Expr) -> None:
        self._plans[address] = plan, types, epilogue

    def ran_plan(self, address: int) -> None:
        self.cells.update(plan_cells(*self._plans[address]))


@contextmanager
def recording() -> Iterator[Recorder]:
    """Note what runs. Graphs and back ends are to be made inside: what has been planned before is
    not known."""
    recorder = Recorder()
    with ExitStack() as stack:
        for owner, name, by in _hooks(recorder):
            stack.enter_context(patch.object(owner, name, by))
        yield recorder


def _hooks(recorder: Recorder) -> Iterator[tuple[object, str, Any]]:
    """What stands in for functions that lower, plan and run."""
    init, execute = compiled.CompiledGraph.__init__, compiled.CompiledGraph._execute
    lowered, grown_product, run = lowering.lowered, PendingProduct.grown, Model.run
    make = Model.__init__
    between: dict[Model, set[Cell]] = {}
    encode, enter = Products.encode, Products._enter

    def noting_node(node: Node, placement: Placement) -> Any:
        recorder.note_node(node, placement)
        return lowered(node, placement)

    def noting_epilogue(
        self: PendingProduct, node: Node, position: int, placement: Placement
    ) -> PendingProduct | None:
        grown = grown_product(self, node, position, placement)
        if grown is not None:
            recorder.note_epilogue(node, position, self.epilogue, grown.epilogue)
        return grown

    def noting_graph(self: Any, graph: Graph, session: Any, *arguments: Any) -> None:
        found: list[Lowered] = []

        def lower(graph: Graph, **options: Any) -> Lowered:
            found.append(lowering.lower(graph, **options))
            return found[0]

        with patch.object(compiled, "lower", lower):
            init(self, graph, session, *arguments)
        self.noted_cells = recorder.noted(found[0], session.kernels.isa.vector_bytes)

    def noting_run(self: Any, program: BoundProgram, *arguments: Any) -> None:
        execute(self, program, *arguments)
        recorder.cells.update(self.noted_cells)
        for plans in program.plans:
            for ready in plans:
                recorder.ran_plan(ready.encoded.address)

    def noting_plan(self: Products, plan: Plan, strides: Any, rows: Any = None) -> Any:
        encoded = encode(self, plan, strides, rows)
        library = self.compiled.library
        recorder.planned(encoded.address, plan, library.types, library.epilogue)
        return encoded

    def noting_product(self: Products, encoded: Any, *arguments: Any) -> None:
        enter(self, encoded, *arguments)
        recorder.ran_plan(encoded.address)

    def noting_model(self: Model, feeds: Any) -> Any:
        results = run(self, feeds)
        recorder.cells.update(between.get(self, ()))
        return results

    def noting_parts(self: Model, graph: Graph, *arguments: Any, **options: Any) -> None:
        make(self, graph, *arguments, **options)
        # Between programs.
        nodes = [part.node for part in divided(graph).parts if part.node is not None]
        between[self] = {cell for node in nodes for cell in _node_cells(node)}

    yield lowering, "lowered", noting_node
    yield PendingProduct, "grown", noting_epilogue
    yield compiled.CompiledGraph, "__init__", noting_graph
    yield compiled.CompiledGraph, "_execute", noting_run
    yield Products, "encode", noting_plan
    yield Products, "_enter", noting_product
    yield Model, "__init__", noting_parts
    yield Model, "run", noting_model


def _node_cells(node: Node) -> Iterator[Cell]:
    yield from (("operator", node.op, str(i), str(v.dtype)) for i, v in enumerate(node.inputs))
    for name, value in node.attributes.items():
        if name in VARIANTS.get(node.op, {}):
            yield "variant", node.op, name, str(value)
