"""The server of `examples/serve.py` with small models: `python small_server.py PORT`."""

import importlib.util
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.serving.test_generator import WORDS, decoder_bytes
from tests.serving.test_unpadding import encoder_bytes

import ftuner


def letters(text: str) -> list[int]:
    """A token for each letter; the letter z is one that the models do not have."""
    return [99 if letter == "z" else ord(letter) % 11 for letter in text]


class Slow(ftuner.Generator):
    """Takes 2 ms for a token and more."""

    def stream(self, prompt: Any, **options: Any) -> AsyncIterator[int]:
        def choose(logits: Any) -> int:
            time.sleep(0.002)
            return int(logits.argmax())

        return super().stream(prompt, choose=choose, **options)


def main(port: int) -> None:
    path = Path(__file__).parents[2] / "examples" / "serve.py"
    spec = importlib.util.spec_from_file_location("serve", path)
    assert spec is not None
    assert spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    embedding = serve.Embedding(ftuner.Batcher(ftuner.load(encoder_bytes())), letters)
    generation = serve.Generation(
        Slow(ftuner.load(decoder_bytes(positions=False))),
        letters,
        lambda tokens: "".join(chr(ord("A") + token) for token in tokens),
        WORDS - 1,
    )
    serve.uvicorn.run(serve.application(embedding, generation), port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]))
