"""`ftuner demo`: searches Python's standard library by meaning, reads a page, compiles a module of
PyTorch, and hears speech."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from ftuner.cli.options import JsonOption, ThreadsOption, option
from ftuner.cli.output import console, print_json, show_table
from ftuner.errors import ConfigurationError

NEXT = """
What to do next:
  ftuner run MODEL.onnx --shape NAME=1x77   your own model; docs/index.md begins there
  ftuner explain gemm 77 768 768            the plan of a product, and why
  ftuner bench gemm                         products beside NumPy and what else is installed"""


def demo(
    query: Annotated[
        list[str] | None, option("TEXT", "A text to search for; repeatable; default: a few.")
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search texts, read a page, compile a layer, and hear speech.

    The texts are the docstrings of Python's standard library, searched by meaning. Each text, line
    and sound is computed at its own size.
    """
    from ftuner_tools.demo.latencies import latency_table
    from ftuner_tools.demo.modules import compiled, needs_torch, show_compiled
    from ftuner_tools.demo.page import model_paths, photograph, read, show_reading
    from ftuner_tools.demo.sentences import QUERIES, encoder_path, search, show_search, tokeniser
    from ftuner_tools.demo.speech import hear, needs, show_hearing

    # Before anything is compiled: what is missing is said at once.
    encode, encoder, paths, page = tokeniser(), encoder_path(), model_paths(), photograph()
    # No extra of the tools has these, so that the rest runs without.
    heard_by, hint = None, ""
    try:
        heard_by = needs()
    except ConfigurationError as error:
        hint = str(error)
    no_torch = ""
    try:
        needs_torch()
    except ConfigurationError as error:
        no_torch = str(error)
    out = console()
    found = search(query or QUERIES, encode, encoder, threads)
    if not as_json:
        show_search(out, found)
    reading = read(page, paths, threads)
    if not as_json:
        show_reading(out, reading)
    module = None if no_torch else compiled(threads)
    if not as_json and module is not None:
        show_compiled(out, module)
    hearing = hear(heard_by, threads) if heard_by is not None else None
    if as_json:
        speech = asdict(hearing) if hearing is not None else {"missing": hint}
        layer = asdict(module) if module is not None else {"missing": no_torch}
        print_json(
            {**asdict(found), "page": asdict(reading), "module": layer, "speech": speech}
        )  # fmt: skip
        return
    rows = [*found.latencies, *reading.latencies]
    if module is not None:
        rows += module.latencies
    else:
        out.print(f"\n{no_torch}", markup=False, highlight=False, soft_wrap=True)
    if hearing is not None:
        show_hearing(out, hearing)
        rows += hearing.latencies
    else:
        out.print(f"\n{hint}", markup=False, highlight=False, soft_wrap=True)
    out.print()
    show_table(out, latency_table(rows))
    out.print(NEXT, markup=False, highlight=False)
