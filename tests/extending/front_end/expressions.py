"""Models written as assignments: `y = tanh(x @ w + b)`."""

import ast
from collections.abc import Mapping
from typing import Any

from ftuner import compile
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.errors import GraphError
from ftuner.graph.builder import Builder

OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
             ast.MatMult: "matmul"}  # fmt: skip


def load(text: str, inputs: Mapping[str, tuple[int | str, ...]], weights: Mapping[str, Any],
         **options: Any) -> Any:  # fmt: skip
    """A model of float32 `inputs`, shapes by name; a text in a shape is an extent that varies.
    The last name assigned to is the output. `options` are those of `ftuner.compile`."""
    builder = Builder()
    given = [
        builder.input(name, FLOAT32, tuple(n if isinstance(n, int) else symbol(n) for n in shape))
        for name, shape in inputs.items()
    ]
    names = {value.name: value for value in given}
    names |= {name: builder.stored(array, FLOAT32) for name, array in weights.items()}

    def value_of(node):
        match node:
            case ast.Name(name) if name in names:
                return names[name]
            case ast.Constant(int() | float() as number):
                return builder.constant(number, FLOAT32)
            case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
                return builder.add(OPERATORS[type(operator)], value_of(left), value_of(right))
            case ast.Call(ast.Name(function), arguments):
                return builder.add(function, *map(value_of, arguments))
        raise GraphError(f"line {node.lineno}: {ast.unparse(node)}")

    for line in ast.parse(text).body:
        builder.where = f"line {line.lineno}"
        match line:
            case ast.Assign([ast.Name(name)], expression):
                names[name] = value_of(expression)
            case _:
                raise GraphError(f"{builder.where}: expected name = expression")
    return compile(builder.graph(given, [(name, names[name])]), **options)
