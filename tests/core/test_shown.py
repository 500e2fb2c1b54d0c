"""Values that show themselves: limits, and a process in which nothing draws."""

import sys

from tests.child import printed

from ftuner.core.shown import MAX_REPR, Shown, short_repr


class Value(Shown):
    def __init__(self, text: str) -> None:
        self.said = text

    def summary(self) -> str:
        return self.said


def test_a_repr_is_short() -> None:
    assert repr(Value("small")) == "Value(small)"
    long = repr(Value("x" * 1000))
    assert len(long) == MAX_REPR
    assert long.endswith(" ...)")
    assert short_repr(3, "x") == "int(x)"


def test_a_text_is_the_repr_where_no_room_draws() -> None:
    """As in processes that compile, which do not load the package's front."""
    script = (
        "import sys, types, pathlib; "
        f"root = pathlib.Path({sys.modules['ftuner'].__file__!r}).parent; "
        "package = types.ModuleType('ftuner'); package.__path__ = [str(root)]; "
        "sys.modules['ftuner'] = package; "
        "from ftuner.hardware.recorded import load_recorded; "
        "found = load_recorded('epyc-milan-2'); print(str(found) == repr(found)); "
        "print('rich' in sys.modules)"
    )
    done = printed("-c", script)
    assert done.split() == ["True", "False"]


def test_a_text_is_drawn_without_the_front() -> None:
    """A program may take one name of the package, such as `ftuner.load`, and nothing else."""
    script = (
        "import ftuner; from ftuner.hardware.recorded import load_recorded; "
        "found = load_recorded('epyc-milan-2'); print(str(found) != repr(found))"
    )
    done = printed("-c", script)
    assert done.split() == ["True"]
