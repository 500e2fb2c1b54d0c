"""`ftuner demo`: searches Python's standard library by meaning, then reads a photographed page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ftuner.cli.demo_page import model_paths, photograph, read, show_reading
from ftuner.cli.demo_sentences import QUERIES, encoder_path, search, show_search, tokeniser
from ftuner.cli.output import JsonOption, ThreadsOption, console, print_json


def demo(
    query: Annotated[
        list[str] | None, typer.Option(help="A text to search for; repeatable; default: a few.")
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search Python's standard library by meaning, then read a photographed page."""
    # Before anything is compiled: what is missing is said at once.
    encode, encoder, paths, page = tokeniser(), encoder_path(), model_paths(), photograph()
    found = search(query or QUERIES, encode, encoder, threads)
    out = console()
    if not as_json:
        show_search(out, found)
    reading = read(page, paths, threads)
    if as_json:
        print_json({**asdict(found), "page": asdict(reading)})
    else:
        show_reading(out, reading)
