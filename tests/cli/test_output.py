"""Tables, whose titles and captions are as wide as the terminal."""

from io import StringIO

from rich.console import Console
from rich.table import Table

from ftuner.cli.output import shape_text, show_table

LONG = "ratio: the time of the peer over that of ftuner; numpy 2.4"


def test_a_caption_is_not_wrapped_to_the_table() -> None:
    table = Table("a", title=f"title {LONG}", caption=LONG)
    table.add_row("1")
    out = StringIO()
    show_table(Console(file=out, width=80), table)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"title {LONG}"
    assert lines[-1] == LONG


def test_shape_text() -> None:
    assert [shape_text(shape) for shape in ((1, 77), (), ("n", 3))] == ["1x77", "", "nx3"]
