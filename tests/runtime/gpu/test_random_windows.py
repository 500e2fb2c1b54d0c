"""Random graphs around convolutions and pools, run by the kernels for a GPU in the interpreter."""

import pytest

pytest.importorskip("onnx")

from tests.random_graphs.checking import GPU, checked
from tests.random_graphs.generating import seeded
from tests.random_graphs.table import ROWS, Row

OPERATORS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool")
SEEDS = 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.op in OPERATORS and not row.idiom], ids=lambda row: row.name
)
def test_windows_of_random_graphs(row: Row) -> None:
    for seed in range(SEEDS):
        report = checked(seeded(seed, row, small=True).case, GPU, peers=False)
        assert report.findings == [], seed
