"""Embedders of other packages, whose encoders ftuner runs without padding.

These packages pad the texts of a batch to the longest one, with a mask. The encoder is loaded with
`unpad="auto"`, which proves that padding may be left out. The packages keep all else: tokens,
pooling, order.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ftuner.core.dtype import FLOAT32
from ftuner.errors import InputError
from ftuner.graph.ir import Array
from ftuner.inference import compile, load
from ftuner.runtime.model import Model

if TYPE_CHECKING:
    import torch

Embedder = TypeVar("Embedder")
Arrays = Mapping[str, Array]
MASK = "attention_mask"
"""The input that is 1 for tokens and 0 for padding, in the models of both packages."""
_LOG = logging.getLogger(__name__)
EXAMPLES = ["a sentence", "a somewhat longer sentence"]


def unpad(embedder: Embedder, *, precision: str = FLOAT32.name) -> Embedder:
    """Have ftuner run the encoder of an embedder, from now on and without padding; returns the
    embedder. Each text has the embedding that it has alone, up to rounding. Vectors of padding are
    zero. Padding on the left is computed, and all padding if no proof is found that results do not
    depend on it (`Model.padding_kept`), which is logged as a warning.

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


def _check(model: Model) -> None:
    """Expect a mask, and say if padding is computed all the same."""
    shapes = {spec.name: spec.shape for spec in model.inputs}
    if len(shapes.get(MASK, ())) != 2:
        known = ", ".join(map(str, model.inputs))
        raise InputError(f"expected an input {MASK} of requests and tokens; there are {known}")
    if model.padding_kept:
        _LOG.warning("the padding of an embedder's texts is computed: %s", model.padding_kept)


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
    model = compile(encoder, example, precision=precision, unpad="auto")
    _check(model)
    encoder.forward = model


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


def _unpad_session(runner: Any, precision: str) -> None:
    """The encoder is a session of onnxruntime within the model of a `TextEmbedding`."""
    if getattr(runner, "model", 0) is None:
        # It is loaded with the first text.
        runner.load_onnx_model()
    path = getattr(getattr(runner, "model", None), "_model_path", None)
    if path is None:
        raise InputError("the TextEmbedding has no session of onnxruntime that has read a file")
    threads = getattr(runner, "threads", None)
    model = load(path, threads=threads, precision=precision, unpad="auto")
    _check(model)
    runner.model = _Session(model, runner.model)


class _Session:
    """A session of onnxruntime, which runs without padding and describes itself as it did."""

    def __init__(self, model: Model, session: Any) -> None:
        self._model, self._session = model, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, output_names: Sequence[str] | None, feeds: Arrays, options: Any = None) -> Any:
        found = self._model.run(feeds)
        if not output_names:
            return found
        by_name = {spec.name: x for spec, x in zip(self._model.outputs, found, strict=True)}
        return [by_name[name] for name in output_names]
