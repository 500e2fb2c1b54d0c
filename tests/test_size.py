"""`scripts/size` counts each file once, for its room."""

from pathlib import Path

import pytest
from tests.child import printed

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_rooms_add_up() -> None:
    done = printed(str(ROOT / "scripts" / "size"), "HEAD")
    head, *rows = (line.split() for line in done.splitlines())
    assert head == ["room", "lines", "files", "since", "HEAD"]
    counted = {name: [int(x.replace(",", "")) for x in numbers] for name, *numbers in rows}
    sources = counted.pop("src/ftuner")
    rooms = [numbers for name, numbers in counted.items() if not name.startswith("(")]
    assert sources == [sum(column) for column in zip(*rooms, strict=True)]
    files = list((ROOT / "src").rglob("*.py"))
    assert sources[:2] == [sum(f.read_bytes().count(b"\n") for f in files), len(files)]
    assert {"(tests)", "(tools)", "(benchmarks)", "core", "errors.py"} <= counted.keys()
