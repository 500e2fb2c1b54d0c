"""Graphs that are rewritten: where new nodes come, and what is left out."""

from tests.graph.graphs import B, Maker, S, applied, ops

from ftuner.graph.algebra import exp
from ftuner.graph.ir import Graph, writing_to
from ftuner.graph.rewrite.rule import Rewriting


def sorted_rows(*read: int) -> Graph:
    """The largest elements of rows, and where they are: what is read of both."""
    g = Maker()
    results = g.add_many("top_k", g.given("x", B, 4), axis=1, k=2, largest=True)
    return g.made(*(results[number] for number in read))


def test_a_graph_of_which_nothing_is_replaced_is_the_same() -> None:
    graph = sorted_rows(0, 1)
    assert Rewriting(graph).rewritten() is graph


def test_a_node_with_several_results_becomes_another() -> None:
    """Which is written once."""

    def negated(graph: Graph) -> Graph:
        new, (node,) = Rewriting(graph), graph.nodes
        with writing_to(new):
            smallest = new.add_many(
                "top_k", -node.inputs[0], **{**node.attributes, "largest": False}
            )
            new.same |= {node.outputs[0]: -smallest[0], node.outputs[1]: smallest[1]}
        return new.rewritten()

    assert ops(applied(negated, sorted_rows(1, 0))) == ["negative", "top_k", "negative"]
    assert ops(applied(negated, sorted_rows(1))) == ["negative", "top_k"]


def test_one_of_the_results_of_a_node_is_replaced() -> None:
    def last(graph: Graph) -> Graph:
        new, (node, *_) = Rewriting(graph), graph.nodes
        with writing_to(new):
            new.same[node.outputs[1]] = new.add_many("top_k", *node.inputs, **node.attributes)[1]
        return new.rewritten()

    assert ops(applied(last, sorted_rows(0, 1))) == ["top_k", "top_k"]
    assert ops(applied(last, sorted_rows(1))) == ["top_k"]


def test_outputs_are_replaced_alone() -> None:
    """Nodes still read the value itself."""
    g = Maker()
    x = g.given("x", B, S)
    graph = g.made(x, g.add("negative", x))
    new = Rewriting(graph)
    with writing_to(new):
        new.outputs = tuple((name, exp(value)) for name, value in graph.outputs)
    negative, *others = new.rewritten().nodes
    assert negative.inputs == (x,)
    assert [node.op for node in others] == ["exp", "exp"]
