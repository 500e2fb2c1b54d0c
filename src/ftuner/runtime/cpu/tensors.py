"""torch's tensors in the CPU's memory: read and written in place as arrays, and given back.

torch is not imported here: a caller that has a tensor has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.core.dtype import BFLOAT16
from ftuner.errors import ConfigurationError, DTypeError, OperandError
from ftuner.runtime.cpu.numpy_types import numpy_dtype

Array = npt.NDArray[Any]


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def any_tensor(*values: object) -> bool:
    """Whether one of the values is a torch tensor."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and any(isinstance(value, kind) for value in values)


def array_of(tensor: Any, name: str) -> Array:
    """The elements of a tensor in place, as an array.

    Raises:
        OperandError: it is on another device, is not strided, or requires a gradient while torch
            records gradients.
        DTypeError: NumPy has no such element type.
    """
    torch: Any = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise OperandError(f"{name} is on {tensor.device}, other operands on the CPU; move one")
    if tensor.layout != torch.strided:
        raise OperandError(f"{name} is {tensor.layout}; expected a strided tensor")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise OperandError(
            f"{name} needs a gradient, which ftuner does not compute; call it within "
            f"torch.no_grad(), or give {name}.detach()"
        )
    try:
        whole = tensor.detach().resolve_conj().resolve_neg()
        if whole.dtype == torch.bfloat16:
            found: Array = whole.view(torch.int16).numpy().view(numpy_dtype(BFLOAT16))
        else:
            found = whole.numpy()
    except (TypeError, ConfigurationError) as error:
        raise DTypeError(f"{name} has dtype {tensor.dtype}: {error}") from error
    except RuntimeError as error:
        raise OperandError(f"{name} is a tensor that cannot be read in place: {error}") from error
    return found


def given_back(result: Array, out: object | None, *operands: object) -> Any:
    """What a caller gets for a result: `out` if that is a tensor, a tensor without a copy if there
    is no `out` and an operand is a tensor, else the array."""
    if is_tensor(out):
        return out
    return tensor_of(result) if out is None and any_tensor(*operands) else result


def tensor_of(array: Array) -> Any:
    """An array as a tensor, which shares its memory unless that is read-only."""
    torch: Any = sys.modules["torch"]
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.name == BFLOAT16.name:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
