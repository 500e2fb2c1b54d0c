"""A layer with a constant weight: what `Dense` asks of its operands on every device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ftuner.core import expr as expressions
from ftuner.core.expr import ACCUMULATOR, ACTIVATIONS, Apply, Expr, Operand, operands
from ftuner.core.shown import Shown
from ftuner.errors import DTypeError, ExpressionError, OperandError, PickleError, ShapeError
from ftuner.runtime.ops import operands as product_operands
from ftuner.runtime.ops.operands import checked_flag

BIAS = Operand("bias", "column")
RESIDUAL = Operand("residual", "matrix")

Activation = str | Callable[[Expr], Expr] | None


def layer_epilogue(has_bias: bool, activation: Activation, has_residual: bool) -> Expr:
    """`activation(acc + bias) + residual`.

    `activation` is a name of `ACTIVATIONS` or a function from expression to expression.

    Raises:
        ExpressionError: an unknown activation, or one that reads operands of its own.
        ConfigurationError: `has_bias` or `has_residual` is not a boolean.
    """
    value: Expr = ACCUMULATOR
    if checked_flag(has_bias, "bias"):
        value = value + BIAS
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ExpressionError(
                f"activation is {activation!r}; known are {', '.join(sorted(ACTIVATIONS))}, or "
                "give a function of an expression"
            )
        value = ACTIVATIONS[activation](value)
    elif activation is not None:
        if not callable(activation):
            raise ExpressionError(
                f"activation is {activation!r}; expected a name or a function of an expression"
            )
        value = expressions.as_expr(activation(value))
    if checked_flag(has_residual, "residual"):
        value = value + RESIDUAL
    return value


class Known(NamedTuple):
    """An activation whose expression is known: what a layer that was pickled is made again with."""

    value: Expr
    """Of the accumulator, with the bias."""
    name: str | None

    def __call__(self, accumulated: Expr) -> Expr:
        return self.value


class Layer(Shown, ABC):
    """`y = activation(x @ weight.T + bias) + residual`, for any number of rows of x."""

    out_features: int
    in_features: int
    dtype: Any
    """The element type of weight, inputs and results: NumPy's, or torch's for a layer on a GPU."""
    takes_residual: bool
    """Whether calls bring a residual."""
    epilogue: Expr
    """What is stored, as a function of the accumulator and of bias and residual."""
    activation: str | None
    """The name of the activation, or of the function that was given."""

    made_by: Callable[..., Layer] | None = None
    """Makes a layer of a weight, bias, activation and residual: the constructor that users know,
    which is in a room above."""

    @abstractmethod
    def weights(self) -> tuple[Any, Any]:
        """Copies of the weight and of the bias, if there is one."""

    def __copy__(self) -> Layer:
        """The layer itself, which nothing changes."""
        return self

    def __deepcopy__(self, memo: object) -> Layer:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A layer is pickled as its weight, bias and expression; the weight is packed again where
        it is loaded."""
        if self.made_by is None:
            raise PickleError("this layer was made by a back end; pickle layers of ftuner.Dense")
        value = self.epilogue
        if self.takes_residual:
            # `layer_epilogue` adds it last.
            assert isinstance(value, Apply)
            value = value.arguments[0]
        weight, bias = self.weights()
        return self.made_by, (weight, bias, Known(value, self.activation), self.takes_residual)

    def summary(self) -> str:
        bias = any(operand.name == BIAS.name for operand in operands(self.epilogue))
        parts = [("bias", bias), (f"{self.activation}", self.activation is not None)]
        parts.append(("residual", self.takes_residual))
        with_ = "".join(f", {name}" for name, there in parts if there)
        return f"{self.in_features} -> {self.out_features}, {self.dtype}{with_}"

    def _describe(
        self, weight: product_operands.Operand, bias_shape: Sequence[int] | None,
        activation: Activation, residual: bool,
    ) -> None:  # fmt: skip
        """Set the attributes of the layer.

        Raises:
            ShapeError: a weight that is no matrix, or a bias that does not fit it.
            ExpressionError: an activation that is unknown, or reads other operands.
            ConfigurationError: a `residual` that is not a boolean.
        """
        if len(weight.shape) != 2:
            raise ShapeError(
                f"weight is {tuple(weight.shape)}; expected (out_features, in_features)"
            )
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        if bias_shape is not None and tuple(bias_shape) != (self.out_features,):
            raise ShapeError(f"bias is {tuple(bias_shape)}; expected ({self.out_features},)")
        self.takes_residual = residual
        self.epilogue = layer_epilogue(bias_shape is not None, activation, residual)
        if isinstance(activation, Known):
            self.activation = activation.name
        elif isinstance(activation, str) or activation is None:
            self.activation = activation
        else:
            self.activation = getattr(activation, "__name__", "function")
        names = [operand.name for operand in operands(self.epilogue)]
        if not {BIAS.name, RESIDUAL.name}.issuperset(names):
            raise ExpressionError(
                f"the epilogue reads {', '.join(names)}; a layer has only bias and residual"
            )

    @abstractmethod
    def __call__(self, x: object, residual: object | None = None, out: object | None = None) -> Any:
        """Apply the layer.

        Args:
            x: `(..., in_features)`, of the weight's dtype, any strides.
            residual: `(..., out_features)`, if and only if the layer was made with `residual=True`.
            out: `(..., out_features)` to write to; made if not given.

        Returns:
            `(..., out_features)`: a NumPy array, or a tensor on the GPU, written on its current
            stream.

        Raises:
            ShapeError, DTypeError, OperandError: arguments that do not fit.
        """

    def _result_shape(self, x: product_operands.Operand, has_residual: bool) -> tuple[int, ...]:
        """The shape of the result for an input.

        Raises:
            DTypeError, ShapeError: an input that does not fit the weight.
            OperandError: a residual is missing, or was not expected.
        """
        if x.dtype != self.dtype:
            raise DTypeError(f"x has dtype {x.dtype}, the weight {self.dtype}; convert one of them")
        shape = tuple(x.shape)
        if not shape or shape[-1] != self.in_features:
            raise ShapeError(f"x is {shape}; expected (..., {self.in_features})")
        if has_residual != self.takes_residual:
            expected = "a residual" if self.takes_residual else "no residual"
            raise OperandError(f"this layer was made to take {expected}")
        return (*shape[:-1], self.out_features)

    def _check_out(self, out: product_operands.Operand, shape: tuple[int, ...]) -> None:
        """Raises ShapeError or DTypeError unless `out` can hold a result of this shape."""
        if tuple(out.shape) != shape:
            raise ShapeError(f"out is {tuple(out.shape)}; expected {shape}")
        if out.dtype != self.dtype:
            raise DTypeError(f"out has dtype {out.dtype}, the weight {self.dtype}")
