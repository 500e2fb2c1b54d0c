"""Tests of front ends need the libraries whose models they read."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("onnx") else ["test_onnx_*.py"]
