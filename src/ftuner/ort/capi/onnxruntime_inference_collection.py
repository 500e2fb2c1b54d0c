"""The classes of sessions and tensors, under the name of onnxruntime's module of them."""

from ftuner.ort.binding import IOBinding
from ftuner.ort.enumerations import OrtDevice, OrtDeviceVendorId
from ftuner.ort.session import InferenceSession
from ftuner.ort.values import OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtDeviceVendorId", "OrtValue"]
