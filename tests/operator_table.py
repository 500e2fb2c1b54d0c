"""`python -m tests.operator_table`: writes docs/operators.md, the table of ONNX's operators."""

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

import onnx

from ftuner.frontends.onnx.blocked import NCHWC
from ftuner.frontends.onnx.definitions import is_defined
from ftuner.frontends.onnx.importer import SUPPORTED
from ftuner.frontends.onnx.records import LEARNING, MICROSOFT

PATH = Path(__file__).parent.parent / "docs" / "operators.md"
LEFT_OUT = {
    "ImageDecoder": "decodes files of pictures: a library for pictures does",
}  # fmt: skip
"""Why operators of ONNX do not run."""


def operators() -> dict[str, int]:
    """ONNX's own operators that are not deprecated, with the version of the newest definition."""
    newest: dict[str, onnx.defs.OpSchema] = {}
    for schema in onnx.defs.get_all_schemas():
        if schema.domain == "":
            newest[schema.name] = schema
    return {name: s.since_version for name, s in sorted(newest.items()) if not s.deprecated}


def table() -> str:
    """The whole page."""
    known = operators()
    runs = [op for op in known if ("", op) in SUPPORTED]
    defined = [
        op
        for op, version in known.items()
        if op not in runs and op not in LEFT_OUT and is_defined("", op, version)
    ]
    left = [op for op in known if op not in runs and op not in defined]
    reasons: dict[str, list[str]] = {}
    for op in left:
        reasons.setdefault(LEFT_OUT[op], []).append(op)
    rows = [f"| {_named(ops)} | {reason} |" for reason, ops in sorted(reasons.items())]
    return "\n".join(
        [
            "# ONNX's operators",
            "",
            "Written by `python -m tests.operator_table` from the table of importers and from the "
            f"schemas of onnx {onnx.__version__}.",
            "",
            f"## Those that run: {len(runs) + len(defined)} of {len(known)}",
            "",
            wrapped(runs),
            "",
            "By their definition as functions of others:",
            "",
            wrapped(defined),
            "",
            f"## Those that do not: {len(left)}",
            "",
            "| operators | why |",
            "| --- | --- |",
            *rows,
            "",
            "## Those of classical learning (`ai.onnx.ml`) that run",
            "",
            wrapped(sorted(op for domain, op in SUPPORTED if domain == LEARNING)),
            "",
            "Maps (`DictVectorizer`, `CastMap`) are outputs alone. Operators of the domain "
            "`ai.onnx.preview.training` do not run.",
            "",
            "## Those of onnxruntime that run",
            "",
            wrapped(sorted(op for domain, op in SUPPORTED if domain == MICROSOFT)),
            "",
            f"Of the domain `{NCHWC}`, which it writes when it saves a file at its highest level:",
            "",
            wrapped(sorted(op for domain, op in SUPPORTED if domain == NCHWC)),
            "",
        ]
    )


def _named(ops: Iterable[str]) -> str:
    return " ".join(f"`{op}`" for op in ops)


def wrapped(ops: Iterable[str]) -> str:
    """Names as code, in lines of 100 characters."""
    return fill(_named(ops), 100, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PATH.write_text(table(), encoding="utf-8")
