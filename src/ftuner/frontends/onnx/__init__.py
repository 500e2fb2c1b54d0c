"""ONNX models as graphs."""

from ftuner.frontends.onnx.importer import Imported, import_model

__all__ = ["Imported", "import_model"]
