"""The ONNX operator com.example.Snake: x + sin(alpha x)^2 / alpha."""

from collections.abc import Sequence

from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.importer import register_importer
from ftuner.graph.ir import Value


def import_snake(context: Context, node: NodeView) -> Sequence[Value]:
    x, alpha = node.input(0), node.number("alpha", 1.0)
    if alpha == 0:
        raise context.malformed("alpha is 0")
    sine = context.add("sin", context.scaled(x, alpha))
    return [context.add("add", x, context.scaled(context.add("multiply", sine, sine), 1 / alpha))]


register_importer("com.example", "Snake", import_snake)
