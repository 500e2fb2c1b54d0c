"""Recognises snake(x) = x + sin(x)^2 where a model writes it out."""

import numpy as np

from ftuner.core.functions import FLOATS, ScalarFunction
from ftuner.graph.algebra import apply, sin
from ftuner.graph.ir import Value
from ftuner.graph.operators import register_function
from ftuner.graph.rewrite.rule import register_rule, rule

SNAKE = ScalarFunction(
    arity=1,
    kinds=FLOATS,
    reference=lambda x: x + np.sin(x) ** 2,
    composition="s = sin(x); x + s * s",
    epilogue=True,
)
register_function("snake", SNAKE)


@register_rule
@rule(lambda x: x + sin(x) * sin(x))
def snake(x: Value) -> Value:
    return apply("snake", x)
