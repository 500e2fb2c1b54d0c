"""The module `onnxruntime_pybind11_state` under another name."""

import sys

from ftuner.ort.capi import onnxruntime_pybind11_state

sys.modules[__name__] = onnxruntime_pybind11_state
