"""The same names as `onnxruntime_pybind11_state`."""

from ftuner.ort.capi import onnxruntime_pybind11_state


def __getattr__(name: str) -> object:
    return getattr(onnxruntime_pybind11_state, name)
