"""What passes recognise in a file, and what they leave written out."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from ftuner.errors import FTunerError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ir import Graph, Node, consumers, producers
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.splitting import split

RECOGNISED = ("attention", "norm", "rotary")
"""Operators that stand for several nodes."""
LEFT = ("power", "sqrt")
"""Operators that are left of norms and activations that are not recognised."""
SOFTMAX, COPIES = "softmax between products", "copies"
FAR = 12
"""Nodes between a softmax and a product that belongs to it."""


def recognised(model: Path) -> dict[str, int]:
    """How often each of `RECOGNISED` is in the graph of a file after all passes, and how often what
    is left: operators of `LEFT`, softmax between two products, and steps that only copy. Empty if
    the graph depends on numbers that are known at run time only."""
    try:
        graph = optimised(import_model(model).graph, halves=False)
    except FTunerError:
        return {}
    counts = Counter(node.op for node in graph.nodes)
    found = {op: counts[op] for op in (*RECOGNISED, *LEFT)}
    found[SOFTMAX] = softmax_between_products(graph)
    steps = [step for part in split(graph) for step in lower(part.graph).steps]
    found[COPIES] = sum(step.title == "copy" for step in steps if step.kind == "nest")
    return {name: count for name, count in found.items() if count}


def softmax_between_products(graph: Graph) -> int:
    """The number of softmax nodes that a product is before and another one after."""
    made_by, read_by = producers(graph), consumers(graph)

    def before(node: Node) -> Iterable[Node]:
        return [made_by[value] for value in node.inputs if value in made_by]

    def after(node: Node) -> Iterable[Node]:
        return [reader for value in node.outputs for reader in read_by.get(value, ())]

    def reaches(node: Node, step: Callable[[Node], Iterable[Node]]) -> bool:
        seen = {node}
        level = [node]
        for _ in range(FAR):
            level = [n for x in level for n in step(x) if n not in seen]
            if any(n.op == "matmul" for n in level):
                return True
            seen.update(level)
        return False

    nodes = [node for node in graph.nodes if node.op == "softmax"]
    return sum(reaches(node, before) and reaches(node, after) for node in nodes)


def summary(counts: dict[str, int]) -> str:
    """The counts in a line: what is recognised, and what is left."""
    parts = [f"{count} {name}" for name, count in counts.items() if name in RECOGNISED]
    left = [f"{count} {name}" for name, count in counts.items() if name not in RECOGNISED]
    return ", ".join(parts) + (f"; left: {', '.join(left)}" if left else "")
