"""Extents as positionals and as options."""

import pytest
import typer
from tests.cli.invoking import document, run

from ftuner.cli.main import EXIT_USAGE
from ftuner.cli.options import given_extents

OPTIONS = ("--m", "3", "--n", "5", "--k", "7")


def test_both_forms_are_the_same() -> None:
    named, placed = (
        document("explain", "gemm", *OPTIONS),
        document("explain", "gemm", "3", "5", "7"),
    )
    assert named == placed
    assert (named["contraction"]["m"], named["contraction"]["n"]) == (3, 5)
    for arguments in (OPTIONS, ("3", "5", "7")):
        (result,) = document("bench", "gemm", *arguments, "--peers", "")["results"]
        assert [result["case"][name] for name in "mnk"] == [3, 5, 7]
    for arguments in (("--batch", "2", *OPTIONS), ("2", "3", "5", "7")):
        (result,) = document("bench", "bmm", *arguments, "--peers", "")["results"]
        assert [result["case"][name] for name in ("batch", *"mnk")] == [2, 3, 5, 7]


def test_chosen() -> None:
    none = {"m": None, "n": None}
    assert given_extents(None, none) is None
    assert given_extents([], none) is None
    assert given_extents([1, 2], none) == (1, 2)
    assert given_extents(None, {"m": 3, "n": 4}) == (3, 4)
    for positional, options in (([1], none), ([1, 2, 3], none), ([1, 2], {"m": 1, "n": None}),
                                (None, {"m": 1, "n": None})):  # fmt: skip
        with pytest.raises(typer.BadParameter):
            given_extents(positional, options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain", "gemm"), "give the extents M N K"),
        (("explain", "gemm", "3", "5"), "expected 3 extents, M N K; got 3 5"),
        (("explain", "gemm", "3", "5", "7", "9"), "expected 3 extents"),
        (("explain", "gemm", "3", "5", "7", "--m", "3"), "not as both"),
        (("explain", "gemm", "--m", "3"), "give all extents; --n, --k missing"),
        (("explain", "gemm", "3", "5", "0"), "M N K"),
        (("explain", "gemm", "3", "5", "x"), "M N K"),
        (("bench", "gemm", "3"), "expected 3 extents"),
        (("bench", "gemm", "3", "5", "7", "--k", "7"), "not as both"),
        (("bench", "bmm", "3", "5", "7"), "expected 4 extents, BATCH M N K"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == EXIT_USAGE
    (line,) = result.stderr.splitlines()
    assert said in line
    assert result.stdout == ""
