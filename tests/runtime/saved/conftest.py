"""The fixture of tests of saved models."""

from pathlib import Path

import pytest

import ftuner


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    """The file of `dense`."""
    path = tmp_path_factory.mktemp("saved") / "dense.ftuner"
    from tests.runtime.saved.files import dense

    ftuner.save(ftuner.load(dense()[0]), path)
    return path
