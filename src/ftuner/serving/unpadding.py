"""Embedders of other packages, whose encoders ftuner runs without padding.

These packages pad the texts of a batch to the longest one, with a mask. Each row of such a batch is
a request of `Model.run_batch`, without the padding at its ends. The packages keep all else:
tokens, pooling, order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ftuner.core.dtype import FLOAT32
from ftuner.errors import InputError
from ftuner.graph.ir import Array
from ftuner.inference import compile, load
from ftuner.models import ModuleModel
from ftuner.runtime.model import Model

if TYPE_CHECKING:
    import torch

Embedder = TypeVar("Embedder")
Arrays = Mapping[str, Array]
MASK = "attention_mask"
"""The input that is 1 for tokens and 0 for padding, in the models of both packages."""
EXAMPLES = ["a sentence", "a somewhat longer sentence"]


def unpad(embedder: Embedder, *, precision: str = FLOAT32.name) -> Embedder:
    """Have ftuner run the encoder of an embedder, from now on and without padding; returns the
    embedder. Each text has the embedding that it has alone, up to rounding: padding on the left,
    too, takes no positions. Vectors of padding are zero.

    Args:
        embedder: a `SentenceTransformer` whose modules are PyTorch's, on the CPU, or a
            `fastembed.TextEmbedding`, for `embed` without `parallel`.
        precision: of the encoder's products, as of `ftuner.load`.

    Raises:
        InputError: another object, or a model without an `attention_mask`.
        FTunerError: else as `ftuner.compile` and `ftuner.load`.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(embedder).__mro__}
    if "sentence_transformers" in packages:
        _unpad_module(embedder, precision)
    elif "fastembed" in packages:
        _unpad_session(getattr(embedder, "model", None), precision)
    else:
        raise InputError(
            f"expected a SentenceTransformer or a fastembed.TextEmbedding; got {embedder!r:.200}"
        )
    return embedder


def run_unpadded(model: Model, feeds: Arrays) -> list[Array]:
    """The outputs of a padded batch, whose rows run without the padding at their ends. Outputs have
    zeros where inputs are padding."""
    mask = feeds[MASK]
    rows, longest = mask.shape
    used = mask != 0
    # A row without any token runs as it is.
    begins = np.where(used.any(1), used.argmax(1), 0)
    ends = np.where(used.any(1), longest - used[:, ::-1].argmax(1), longest)
    batch = [
        {
            name: x[row : row + 1, begin:end] if x.shape[:2] == mask.shape else x[row : row + 1]
            for name, x in feeds.items()
        }
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
    ]
    found = model.run_batch(batch)
    outputs = []
    for spec, parts in zip(model.outputs, zip(*found, strict=True), strict=True):
        if len(spec.shape) < 2 or isinstance(spec.shape[1], int):
            outputs.append(np.concatenate(parts))
            continue
        whole = np.zeros((rows, longest, *parts[0].shape[2:]), parts[0].dtype)
        for row, part in enumerate(parts):
            whole[row, begins[row] : ends[row]] = part[0]
        outputs.append(whole)
    return outputs


def _expect_mask(model: Model) -> None:
    shapes = {spec.name: spec.shape for spec in model.inputs}
    if len(shapes.get(MASK, ())) != 2:
        known = ", ".join(map(str, model.inputs))
        raise InputError(f"expected an input {MASK} of requests and tokens; there are {known}")


def _unpad_module(embedder: Any, precision: str) -> None:
    """The encoder is the PyTorch module within the first module of a `SentenceTransformer`."""
    import torch

    encoder = getattr(embedder[0], "auto_model", None)
    if not isinstance(encoder, torch.nn.Module):
        raise InputError(
            f"the first module of the SentenceTransformer runs a {type(encoder).__name__}; "
            'expected one of PyTorch: make it with backend="torch"'
        )
    if any(parameter.device.type != "cpu" for parameter in encoder.parameters()):
        raise InputError('the SentenceTransformer is on a GPU; make it with device="cpu"')
    example = _arguments(embedder, encoder)
    model = compile(encoder, example, precision=precision)
    assert isinstance(model, ModuleModel)
    _expect_mask(model)
    encoder.forward = _Forward(model)


def _arguments(embedder: Any, encoder: torch.nn.Module) -> dict[str, Any]:
    """What an embedder calls its encoder with."""
    import torch

    found: dict[str, Any] = {}
    forward = encoder.forward

    def noted(**keywords: Any) -> Any:
        found.update(keywords)
        return forward(**keywords)

    # It calls `forward`, for which no hooks run.
    encoder.forward = noted
    try:
        embedder.encode(EXAMPLES, show_progress_bar=False)
    finally:
        del encoder.forward
    # They were made in inference mode, which tracing refuses.
    return {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in found.items()}


class _Forward:
    """The `forward` of an encoder."""

    def __init__(self, model: ModuleModel) -> None:
        self._model = model

    def __call__(self, **keywords: Any) -> Any:
        import torch

        feeds = self._model.calling.feeds((), keywords)
        arrays = {name: np.asarray(x) for name, x in feeds.items()}
        outputs = [torch.from_numpy(x) for x in run_unpadded(self._model, arrays)]
        return self._model.calling.returned(outputs, feeds)


def _unpad_session(runner: Any, precision: str) -> None:
    """The encoder is a session of onnxruntime within the model of a `TextEmbedding`."""
    if getattr(runner, "model", 0) is None:
        # It is loaded with the first text.
        runner.load_onnx_model()
    path = getattr(getattr(runner, "model", None), "_model_path", None)
    if path is None:
        raise InputError("the TextEmbedding has no session of onnxruntime that has read a file")
    model = load(path, threads=getattr(runner, "threads", None), precision=precision)
    _expect_mask(model)
    runner.model = _Session(model, runner.model)


class _Session:
    """A session of onnxruntime, which runs without padding and describes itself as it did."""

    def __init__(self, model: Model, session: Any) -> None:
        self._model, self._session = model, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, output_names: Sequence[str] | None, feeds: Arrays, options: Any = None) -> Any:
        found = run_unpadded(self._model, feeds)
        if not output_names:
            return found
        by_name = {spec.name: x for spec, x in zip(self._model.outputs, found, strict=True)}
        return [by_name[name] for name in output_names]
