"""Documents of results in a small form: numbers of seven digits, and each name once for a table.

A list of objects becomes `{"columns": [...], "rows": [[...], ...]}`. A column is the path of an
entry within its object. A table within a row leaves out its columns where they are those of the
table above it. Files have a line for each row, so that changes of results can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DIGITS = 7
"""Significant digits that are kept: what is measured varies from the third on, and the others keep
the pages from changing where they round."""
COLUMNS, ROWS = "columns", "rows"
ABSENT = "~"
"""In a row: the object has no such entry."""
_BETWEEN = "\t"
"""Between the parts of a path: names have dots, slashes and blanks."""


def compact(value: Any) -> Any:
    """The small form of a document."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        assert value.keys() != {COLUMNS, ROWS}
        return {name: compact(x) for name, x in value.items()}
    if not isinstance(value, (list, tuple)):
        assert value != ABSENT
        return value
    if len(value) < 2 or not all(isinstance(x, Mapping) for x in value):
        return [compact(x) for x in value]
    objects = [dict(_entries(x)) for x in value]
    columns = list(dict.fromkeys(path for found in objects for path in found))
    rows = []
    above: dict[str, Any] = {}
    for found in objects:
        row = {path: compact(found[path]) if path in found else ABSENT for path in columns}
        for path, x in row.items():
            if isinstance(x, dict) and x and above.get(path) == x[COLUMNS]:
                row[path] = {ROWS: x[ROWS]}
            elif isinstance(x, dict) and x:
                above[path] = x[COLUMNS]
        rows.append(list(row.values()))
    return {COLUMNS: columns, ROWS: rows}


def _entries(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of an object, and of objects within it, by path."""
    for name, x in value.items():
        if isinstance(x, Mapping) and x:
            yield from _entries(x, f"{before}{name}{_BETWEEN}")
        else:
            yield before + name, x


def whole(value: Any) -> Any:
    """A document from its small form.

    Raises:
        ValueError: a table whose rows and columns do not fit.
    """
    if isinstance(value, list):
        return [whole(x) for x in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {COLUMNS, ROWS}:
        return {name: whole(x) for name, x in value.items()}
    columns, rows = value[COLUMNS], value[ROWS]
    if not isinstance(columns, list) or not all(isinstance(x, str) for x in columns):
        raise ValueError("the columns of a table are not names")
    if not isinstance(rows, list) or not all(isinstance(x, list) for x in rows):
        raise ValueError("the rows of a table are not lists")
    above: dict[str, Any] = {}
    return [_object(columns, row, above) for row in rows]


def _object(columns: Sequence[str], row: Sequence[Any], above: dict[str, Any]) -> dict[str, Any]:
    """The object of a row. `above`: columns of the last table at each path, which is added to."""
    if len(row) != len(columns):
        raise ValueError(f"a row has {len(row)} values for {len(columns)} columns")
    found: dict[str, Any] = {}
    for path, x in zip(columns, row, strict=True):
        if x == ABSENT:
            continue
        if isinstance(x, dict) and ROWS in x:
            x = {COLUMNS: above.get(path), **x}
            above[path] = x[COLUMNS]
        *outer, name = path.split(_BETWEEN)
        place = found
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"a table has {part!r} as a value and as an object")
        place[name] = whole(x)
    return found


def text(document: Mapping[str, Any]) -> str:
    """The text of a file: the small form, with a line for each row and each entry of the top."""
    lines = [f"{json.dumps(name)}:{_lines(x)}" for name, x in compact(document).items()]
    return "{" + ",\n".join(lines) + "}\n"


def _lines(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {COLUMNS, ROWS}:
        rows = ",\n".join(_lines(row) for row in value[ROWS])
        return f'{{"{COLUMNS}":{_lines(value[COLUMNS])},"{ROWS}":[\n{rows}]}}'
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
