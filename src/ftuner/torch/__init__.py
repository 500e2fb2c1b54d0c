"""The interface of PyTorch: `torch.compile(model, backend="ftuner")`.

torch is imported by these modules. torch itself finds `backend` by its entry point.
"""

from ftuner.torch.dynamo import backend
from ftuner.torch.explanation import Explanation, explain

__all__ = ["Explanation", "backend", "explain"]
