"""`Dense`: a layer with a constant weight, and an epilogue fused into its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.layer import Activation, Layer


class Dense(Layer):
    """`y = activation(x @ weight.T + bias) + residual`, for any number of rows of x.

    A layer is on the device of its weight. On a CPU the weight is packed at construction, and a
    call compiles, packs and measures nothing. `Dense(...)` returns the layer of that device's back
    end; all of them are instances of `Dense`.
    """

    def __new__(
        cls,
        weight: object,
        bias: object | None = None,
        activation: Activation = None,
        residual: bool = False,
        *,
        width: int | None = None,
    ) -> Any:
        """Make a layer ready for every number of rows.

        Args:
            weight: `(out_features, in_features)`, float32 or float64; or a torch tensor on a GPU,
                of float16, bfloat16 or float32. Any strides; copied.
            bias: `(out_features,)`, or None; copied.
            activation: a name of `ftuner.core.expr.ACTIVATIONS`, or a function that builds an
                expression from the expression it is given, or None.
            residual: whether calls bring an array that is added last.
            width: vectors of a panel of the packed weight, one of the library's `widths`; by
                default the one with the best estimate. Only on a CPU.

        Raises:
            ShapeError, DTypeError, OperandError, ExpressionError: arguments that do not fit.
            ConfigurationError: a width that the library does not have, or any on a GPU; a
                `residual` that is not a boolean.
            HardwareError: a GPU that kernels cannot run on.
        """
        return backend_for(weight).dense(weight, bias, activation, residual, width)

    if TYPE_CHECKING:
        # Objects have it from their device's class.
        def __call__(
            self, x: object, residual: object | None = None, out: object | None = None
        ) -> Any: ...

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, Layer)
