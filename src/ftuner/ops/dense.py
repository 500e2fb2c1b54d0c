"""`Dense`: a layer with a constant weight, and an epilogue fused into its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex, cast, overload

import numpy as np
import numpy.typing as npt

from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.layer import Activation, Layer
from ftuner.runtime.ops.operand_types import AnyTensor, Float, Tensor

if TYPE_CHECKING:
    import torch

    Array = npt.NDArray[np.float32] | npt.NDArray[np.float64]


class Dense(Layer):
    """`y = activation(x @ weight.T + bias) + residual`, for any number of rows of x.

    A layer is on the device of its weight. On a CPU the constructor packs the weight; calls never
    compile, pack or measure. `Dense(...)` returns the layer of the device's back end, which is an
    instance of `Dense`. A layer can be pickled: it is made again where it is loaded, on the same
    kind of device. Nothing changes a layer, so that a copy is the layer itself.
    """

    def __new__(
        cls,
        weight: Array | Tensor,
        bias: Array | Tensor | None = None,
        activation: Activation = None,
        residual: bool = False,
        *,
        width: SupportsIndex | None = None,
    ) -> Dense:
        """Make a layer ready for every number of rows.

        Args:
            weight: `(out_features, in_features)`, float32 or float64; or a torch tensor, on a
                GPU float16, bfloat16 or float32. Any strides; the layer keeps a copy.
            bias: `(out_features,)`, or None; the layer keeps a copy.
            activation: a name in `ftuner.core.expr.ACTIVATIONS`, a function from expression to
                expression, or None.
            residual: whether calls give an array that is added last.
            width: width in vectors of a panel of the packed weight, one of the library's `widths`;
                by default the one with the best estimate. Only on a CPU.

        Raises:
            ShapeError, DTypeError, OperandError, ExpressionError: arguments that do not fit.
            ConfigurationError: a width that the library does not have, or a width on a GPU;
                `residual` is not a boolean.
            HardwareError: a GPU that kernels cannot run on.
        """
        found = backend_for(weight).dense(weight, bias, activation, residual, width)
        found.made_by = Dense
        return cast(Dense, found)

    if TYPE_CHECKING:
        # The class of the device defines it.
        dtype: np.dtype[np.float32] | np.dtype[np.float64] | torch.dtype

        @overload
        def __call__(
            self, x: npt.NDArray[Float], residual: npt.NDArray[Float] | None = None,
            out: npt.NDArray[Float] | None = None,
        ) -> npt.NDArray[Float]: ...  # fmt: skip
        @overload
        def __call__(
            self, x: AnyTensor, residual: AnyTensor | None = None, out: AnyTensor | None = None
        ) -> AnyTensor: ...
        def __call__(self, x: object, residual: object = None, out: object = None) -> object: ...

        def weights(self) -> tuple[Array | Tensor, Array | Tensor | None]: ...

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, Layer)
