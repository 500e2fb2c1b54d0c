"""Results of other forms as documents that compare ftuner with its peers at each case."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from benchmarks.results import Document, compare
from ftuner_tools.timing import SUBJECT

Engines = Mapping[str, Mapping[str, Any]]
PRECISIONS = ("bfloat16", "int8-dynamic")
BATCHES = f"{SUBJECT}, batches"


def _case(label: str, engines: Engines, subject: str = SUBJECT) -> dict[str, Any]:
    """A case of one way of ftuner's and of the peers, without its other ways."""
    kept = {name: e for name, e in engines.items() if not name.startswith(SUBJECT)}
    if subject in engines:
        kept[SUBJECT] = engines[subject]
    return {"label": label, "engines": kept, **compare(kept, SUBJECT)}


def _of_batches(document: Document) -> Iterator[Document]:
    """Batches of requests of unequal length; the peers' with padding, sorted, or one by one."""

    def engines(seconds: Mapping[str, float]) -> Engines:
        return {name: {"min_s": s, "median_s": s} for name, s in seconds.items()}

    cases = [
        c | _case(f"{c['lengths']}, batches of {c['batch']}", engines(c["seconds"]), BATCHES)
        for c in document["cases"]
    ]
    yield document | {"cases": cases}


def _of_precisions(document: Document) -> Iterator[Document]:
    """A document for each precision, with the peers that compute in it."""
    for precision in PRECISIONS:
        cases = []
        for c in document["cases"]:
            prefix = f"{precision} "
            engines = {
                name.removeprefix(prefix): e
                for name, e in c["engines"].items()
                if name.startswith(prefix)
            }
            cases.append(_case(f"{c['rows']}x{c['k']}x{c['n']}", engines))
        yield document | {"set": precision, "cases": cases}


def _of_modules(document: Document) -> Iterator[Document]:
    """All shapes of all modules or models that could be measured."""
    cases = [
        _case(f"{found['label']} {case['label']}", case["engines"])
        for found in document["results"]
        for case in found.get("cases", ())
    ]
    yield {k: x for k, x in document.items() if k != "results"} | {"cases": cases}


FORMS: Mapping[str, Callable[[Document], Iterator[Document]]] = {
    "ragged": _of_batches, "precisions": _of_precisions, "torch-modules": _of_modules,
    "quantised": _of_modules,
}  # fmt: skip
"""By kind of document."""


def compared(documents: Iterable[Document]) -> Iterator[Document]:
    """The documents, those of the kinds above as comparisons."""
    for document in documents:
        form = FORMS.get(document["kind"])
        yield from (document,) if form is None else form(document)
