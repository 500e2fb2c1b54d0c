"""The part of onnxruntime's package of transformers that programs need for inference."""
