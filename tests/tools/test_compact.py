"""The small form keeps results, up to the digits of numbers; what is malformed is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftuner_tools.compact import ABSENT, DIGITS, text, whole

NAMES = st.sampled_from(["a", "b.c", "d/e", "two words", "ftuner"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)
)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(x) for name, x in value.items()}
    return [rounded(x) for x in value] if isinstance(value, list) else value


@given(st.dictionaries(NAMES, VALUES))
def test_nothing_is_lost(document: dict[str, Any]) -> None:
    document = rounded(document)
    if "Infinity" in json.dumps(document):
        with pytest.raises(ValueError, match="not JSON compliant"):
            text(document)
        return
    assert whole(json.loads(text(document))) == document


def test_names_are_written_once() -> None:
    cases = [{"engines": {"x": {"min_s": n + 0.123456789}}, "label": str(n)} for n in range(3)]
    results = [{"name": str(n), "cases": cases} for n in range(4)]
    written = text({"results": results, "none": []})
    assert written.count("min_s") == written.count("label") == 1
    assert "0.1234568," in written
    assert len(written.splitlines()) == 6
    found = whole(json.loads(written))
    assert found == rounded({"results": results, "none": []})
    # Each object is one of its own.
    found["results"][0]["cases"].clear()
    assert len(found["results"][1]["cases"]) == 3


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"columns": 1, "rows": []}, "columns of a table"),
        ({"columns": [1], "rows": [[1]]}, "columns of a table"),
        ({"columns": ["a"], "rows": {}}, "rows of a table"),
        ({"columns": ["a"], "rows": [1]}, "rows of a table"),
        ({"columns": ["a"], "rows": [[1, 2]]}, "2 values for 1 columns"),
        ({"columns": ["a"], "rows": [[{"rows": []}]]}, "columns of a table"),
        ({"columns": ["a", "a\tb"], "rows": [[1, 2]]}, "as a value and as an object"),
    ],
)
def test_malformed_tables_are_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        whole({"cases": table})


def test_what_is_absent_stays_absent() -> None:
    document = {"x": [{"a": None}, {"b": {}}, {"a": 1, "b": {"c": 2}}]}
    assert ABSENT in text(document)
    assert whole(json.loads(text(document))) == document
