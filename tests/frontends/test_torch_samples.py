"""Samples of torch's operators give what torch gives, or are refused by name."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
# torch's tests import it.
pytest.importorskip("expecttest")

from tests.frontends import aten_samples  # noqa: E402
from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402

import ftuner  # noqa: E402
from ftuner.frontends.torch.importer import import_fx  # noqa: E402

# They look for a test of `unittest` in all frames and their modules, half a second each time.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None
OPERATORS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}
CORE = (
    "add", "div.floor_rounding", "clamp", "where", "sum", "std", "argmax", "cumsum", "index_put",
    "scatter_reduce.amax", "gather", "sort", "diagonal", "roll", "slice_scatter", "matmul",
    "nn.functional.conv2d", "nn.functional.conv_transpose2d", "nn.functional.max_pool2d",
    "nn.functional.adaptive_avg_pool2d", "nn.functional.interpolate.bicubic",
    "nn.functional.layer_norm", "nn.functional.scaled_dot_product_attention",
    "nn.functional.unfold", "nn.functional.pixel_shuffle", "diagonal_scatter", "erfinv",
)  # fmt: skip
DTYPES = (torch.float32, torch.int64, torch.bool)
MOST = 2
"""Samples of an operator and a dtype."""
REFUSED = (
    "dropout", "feature_", "training", "while training", "rrelu", "booleans", "of int", "of uint8",
    "of bool", "complex", "into bool", "bool[", "statistics", "element of a tensor",
    "computed from extents", "no element to repeat", "corners", "einsum of integers",
    "float32 for", "uint8, uint8", "no uint8 is", "dims have no", "the range of the elements",
)  # fmt: skip
"""What the reasons are, one of which each message of a refused sample has."""


def _outcomes(op: str, dtypes: tuple[torch.dtype, ...], most: int) -> Iterator[tuple[str, str]]:
    """The first sample of the first dtype is traced whole and decomposed, the others in turns."""
    for place, dtype in enumerate(dtypes):
        if dtype not in OPERATORS[op].dtypes:
            continue
        for number, sample in enumerate(aten_samples.samples(OPERATORS[op], dtype, most)):
            turn = (place + number) % 2 == 1
            for whole in {turn, not place and not number}:
                kind = "whole" if whole else "decomposed"
                yield f"{dtype} {number} {kind}", aten_samples.outcome(sample, whole)


@pytest.mark.parametrize("op", CORE)
def test_a_few_samples_are_right(op: str) -> None:
    found = list(_outcomes(op, (torch.float32,), 2))
    assert [(which, what) for which, what in found if what != "right"] == []
    assert found


@pytest.mark.parametrize("op", ["diff", "histc"])
def test_samples_that_are_traced_whole(op: str) -> None:
    """What AOTAutograd makes of `diff` without removing updates in place has no importer."""
    samples = aten_samples.samples(OPERATORS[op], torch.float32, 12)
    found = [aten_samples.outcome(sample, whole=True) for sample in samples]
    assert {what for what in found if "the range of the elements" not in what} == {"right"}


@pytest.mark.parametrize("bins", [1, 5, 49, 50, 100])
def test_histograms_have_the_bins_of_torch(bins: int) -> None:
    x = torch.cat([
        torch.arange(bins + 1) / bins, torch.linspace(-1, 2, 97), torch.rand(31),
        torch.tensor([torch.inf, -torch.inf, torch.nan]),
    ])  # fmt: skip
    model = ftuner.compile(Counted(bins), (x,))
    torch.testing.assert_close(model(x), torch.histc(x, bins, 0, 1))


class Counted(torch.nn.Module):
    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, self.bins, 0, 1)


@pytest.mark.full
@pytest.mark.parametrize("op", CORE)
def test_a_compiled_sample_is_right(op: str) -> None:
    sample = next(aten_samples.samples(OPERATORS[op], torch.float32, 1))
    with torch.no_grad():
        expected = sample.function(*sample.operands)
        module = aten_samples.traced(sample, whole=False)
    assert module is not None
    found = import_fx(module, {}, {})
    operands = {v.name: x for v, x in zip(found.graph.inputs, sample.operands, strict=True)}
    got = ftuner.compile(found.graph)(**operands)
    for number, other in enumerate(expected):
        torch.testing.assert_close(got[f"output_{number}"], other, rtol=2e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("op", OPERATORS)
def test_samples_are_right_or_refused_by_name(op: str) -> None:
    """A sample is refused for a reason of the list."""
    wrong = [
        (which, what)
        for which, what in _outcomes(op, DTYPES, MOST)
        if what not in ("right", "untraced")
        and not what.startswith("missing: ")
        and not (what.startswith("refused: ") and any(reason in what for reason in REFUSED))
    ]
    assert wrong == []
