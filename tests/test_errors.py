"""Messages of errors have a bounded length and printable characters, whatever was given."""

import pickle

import pytest

from ftuner import errors
from ftuner.errors import MAX_MESSAGE, FTunerError, IndexRangeError, ShapeError

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FTunerError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_long_messages_are_cut_in_the_middle(kind: type[FTunerError]) -> None:
    text = str(kind(f"begin {'x' * 10_000_000} end"))
    assert len(text) < 1.1 * MAX_MESSAGE
    assert text.startswith("begin xxx")
    assert text.endswith("xxx end")
    assert "10000010 characters" in text


def test_characters_that_are_not_printable_are_escaped() -> None:
    error = ShapeError("a\x1b[31m\0\n\udc80é")
    assert str(error) == r"a\x1b[31m\x00\n\udc80é"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_other_messages_stay_as_they_are() -> None:
    assert str(ShapeError("x is (3,); expected (4,)")) == "x is (3,); expected (4,)"
    assert IndexRangeError("one", 2).args == ("one", 2)
