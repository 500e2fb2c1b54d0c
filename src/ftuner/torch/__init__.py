"""The interface of PyTorch: `torch.compile(model, backend="ftuner", dynamic=True)`.

torch finds the back end by its entry point, so that nothing is imported for it. Call the compiled
module within `torch.no_grad()` or `torch.inference_mode()`: graphs that compute gradients are left
to PyTorch. What torch makes of shapes is for the caller to say:

- `dynamic=True` has torch trace every extent as a symbol; without it the first graph is for the
  shapes of the first call alone. `torch._dynamo.mark_dynamic(tensor, axis)` does so for one axis.
- An extent of 1 is another graph to torch, which ftuner runs by the program that it has for any
  extents. Extents that are equal in the first call are one symbol;
  `torch.fx.experimental._config.use_duck_shape = False` makes them two.
- `torch._dynamo.config.allow_rnn = True` has torch trace LSTMs, which it otherwise leaves out.

Parameters are packed once for all graphs, and again when their version, address or elements change.
Of the elements each call compares a few words of each parameter on the CPU, as
writes through `parameter.data` and NumPy change no version. After such a write of a few elements,
or of a parameter on a GPU, call `torch.autograd.graph.increment_version(module.parameters())`.
"""

from ftuner.torch.dynamo import backend
from ftuner.torch.explanation import Explanation, explain

__all__ = ["Explanation", "backend", "explain"]
