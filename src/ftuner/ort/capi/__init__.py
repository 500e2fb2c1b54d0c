"""Modules of onnxruntime that hold its classes, under the names that packages import."""

from ftuner.ort.capi import (
    _pybind_state,
    onnxruntime_inference_collection,
    onnxruntime_pybind11_state,
)

__all__ = ["_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state"]
