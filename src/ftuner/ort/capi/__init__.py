"""Modules of onnxruntime that hold its classes, under the names that packages import."""
