"""Inputs and outputs of a session that are bound to memory before a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ftuner.errors import FTunerError
from ftuner.ort import cuda
from ftuner.ort.description import Array, NodeArg
from ftuner.ort.enumerations import device_index
from ftuner.ort.exceptions import ArgumentError
from ftuner.ort.values import OrtValue, at_address, expect_value
from ftuner.runtime.cpu.appending import lent
from ftuner.runtime.ops.operands import on_gpu

Run = Callable[[Mapping[str, object]], list[Any]]
"""Returns all outputs of a model."""


class Session(Protocol):
    """What a binding asks of its session."""

    @property
    def device(self) -> int | None:
        """The number of the GPU that it computes on, or None for the CPU."""

    @property
    def appended(self) -> Mapping[str, str]:
        """The outputs that are computed in the memory of an input, by the name of the input."""

    def get_inputs(self) -> list[NodeArg]: ...

    def get_outputs(self) -> list[NodeArg]: ...

    def get_overridable_initializers(self) -> list[NodeArg]: ...

    def expect_outputs(self, names: Iterable[str]) -> None:
        """Raises ArgumentError unless the model has outputs of these names."""


class IOBinding:
    """The inputs and outputs of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue | int | None] = {}
        """For each output the memory that it goes to, or the number of a GPU, or None for the
        CPU."""
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an input to an array, which is read in the run, not now.

        Raises:
            ArgumentError: no input has the name, or it is no array that a tensor can be made from.
        """
        self._expect_input(name)
        self._inputs[name] = OrtValue.ortvalue_from_numpy(arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: object,
        shape: Sequence[int], buffer_ptr: int,
    ) -> None:  # fmt: skip
        """Bind an input to the memory at an address, which the caller keeps alive.

        Raises:
            ArgumentError: no input has the name; an unknown element type or device.
        """
        self._expect_input(name)
        self._inputs[name] = at_address(buffer_ptr, shape, element_type, device_type, device_id)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value. Raises ArgumentError if no input has the name."""
        self._expect_input(name)
        self._inputs[name] = expect_value(ortvalue)

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: object = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """Bind an output to a device, or to the memory at an address, which the caller keeps alive.

        Raises:
            ArgumentError: an address without an element type or shape; an unknown device.
        """
        if buffer_ptr is None:
            self._outputs[name] = device_index(device_type, device_id)
        elif element_type is None or shape is None:
            raise ArgumentError(
                f"output {name!r} is bound to the address {buffer_ptr:#x}; give element_type and "
                "shape of the memory as well"
            )
        else:
            self._outputs[name] = at_address(
                buffer_ptr, shape, element_type, device_type, device_id
            )

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a value whose memory takes its elements."""
        self._outputs[name] = expect_value(ortvalue)

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget where outputs go, and those of the last run."""
        self._outputs.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Nothing is left to wait for: copies and runs are in the order of torch's stream."""

    synchronize_outputs = synchronize_inputs

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self._results)

    get_outputs_as_ortvaluevector = get_outputs

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The outputs of the last run as arrays."""
        return [value.numpy() for value in self._results]

    def run(self, results: Run) -> None:
        """Run on the bound inputs and deliver the bound outputs.

        Raises:
            ArgumentError: inputs are missing, no output is bound or there is none of the name, or
                memory does not have the type or shape of what it is bound to.
        """
        names = [arg.name for arg in self.session.get_outputs()]
        if not self._outputs:
            raise ArgumentError(f"no output is bound; bind_output binds one of {', '.join(names)}")
        self.session.expect_outputs(self._outputs)
        try:
            computed = dict(zip(names, results(self._feeds()), strict=True))
            self._results = [
                _delivered(name, computed[name], target) for name, target in self._outputs.items()
            ]
        except ArgumentError:
            raise
        except FTunerError as error:
            raise ArgumentError(f"error in a run with bound memory: {error}") from error

    def _feeds(self) -> dict[str, object]:
        """Arrays for a session on the CPU; tensors for one on a GPU, so that outputs are, too."""
        device = self.session.device
        if device is None:
            outputs = self.session.appended
            return {
                name: self._array(value, outputs.get(name)) for name, value in self._inputs.items()
            }
        held = {name: value.held() for name, value in self._inputs.items()}
        return {n: x if on_gpu(x) else cuda.to_device(x, device) for n, x in held.items()}

    def _array(self, value: OrtValue, output: str | None) -> Array:
        """The array of an input. If the output that continues it is bound to the same memory, the
        run may write there."""
        array = value.numpy()
        target = None if output is None else self._outputs.get(output)
        if isinstance(target, OrtValue) and not on_gpu(target.held()):
            flags = array.flags
            usable = flags.aligned and flags.c_contiguous and flags.writeable
            if usable and _same_memory(array, target.numpy()):
                return lent(array)
        return array

    def _expect_input(self, name: str) -> None:
        args = (*self.session.get_inputs(), *self.session.get_overridable_initializers())
        known = [arg.name for arg in args]
        if name not in known:
            raise ArgumentError(f"the model has no input {name!r}; it has {', '.join(known)}")


def _delivered(name: str, found: Any, target: OrtValue | int | None) -> OrtValue:
    """An output where it was bound to."""
    if isinstance(target, OrtValue):
        if list(found.shape) != target.shape():
            raise ArgumentError(
                f"output {name!r} has the shape {list(found.shape)}; it is bound to memory of "
                f"shape {target.shape()}"
            )
        if on_gpu(found) or on_gpu(target.held()) or not _same_memory(found, target.numpy()):
            target.take(found)
        return target
    if target is None:
        return OrtValue(cuda.to_host(found) if on_gpu(found) else found)
    return OrtValue(found if on_gpu(found) else cuda.to_device(found, target))


def _same_memory(x: Array, y: Array) -> bool:
    """Whether two arrays have the same elements at the same addresses."""
    return (x.ctypes.data, x.dtype, x.shape, x.strides) == (
        y.ctypes.data, y.dtype, y.shape, y.strides
    )  # fmt: skip
