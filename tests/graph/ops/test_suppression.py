"""Non-maximum suppression against its definition, box by box."""

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S

from ftuner.core.dtype import DTYPES
from ftuner.graph.ops.suppression import BLOCK, OPERATORS
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

SUPPRESS = OPERATORS[0]


def operands(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and boxes by rows."""
    return x[:, :-4], np.ascontiguousarray(x[:, -4:].swapaxes(1, 2))


def by_definition(
    x: np.ndarray, iou_threshold: float, score_threshold: float | None, limit: int
) -> list[tuple[int, int, int]]:
    """One box after the other, compared with each box that is kept."""
    found = []
    for image, rows in enumerate(x):
        for label, scores in enumerate(rows[:-4]):
            kept: list[int] = []
            for box in sorted(range(len(scores)), key=lambda i: -scores[i]):
                low = score_threshold is not None and not scores[box] > score_threshold
                if low or len(kept) == limit:
                    continue
                if not (overlaps(rows[-4:, [box]], rows[-4:, kept]) > iou_threshold).any():
                    kept.append(box)
            found += [(image, label, box) for box in kept]
    return found


@np.errstate(invalid="ignore", divide="ignore")
def overlaps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Intersection over union of a box with each of others; zero for a box without area."""
    sides = np.maximum(np.minimum(x[2:], y[2:]) - np.maximum(x[:2], y[:2]), 0)
    areas = [np.prod(z[2:] - z[:2], axis=0) for z in (x, y)]
    both = np.prod(sides, axis=0)
    return np.where(np.minimum(*areas) > 0, both / (areas[0] + areas[1] - both), 0.0)


def table(count: int, size: float, seed: int) -> np.ndarray:
    """Two images and two labels; scores with ties, some boxes equal, some without area."""
    rng = np.random.default_rng(seed)
    low = rng.random((2, 2, count))
    extents = rng.random((2, 2, count)) * size * (rng.random((2, 1, count)) > 0.05)
    scores = np.round(rng.random((2, 2, count)), 2)
    found = np.concatenate([scores, low, low + extents], 1).astype(np.float32)
    found[:, -4:, : count // 8] = found[:, -4:, count - count // 8 :]
    return found


@pytest.mark.parametrize("count", [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize(
    ("size", "iou_threshold", "score_threshold", "limit"),
    [
        (0.1, 0.5, None, 1000),
        (0.6, 0.25, None, 1000),
        (0.6, 0.0, 0.3, 1000),
        (0.02, 0.5, 0.1, BLOCK + 3),
        (0.3, 0.5, None, 5),
        (0.3, 0.5, None, 0),
        (0.3, 1.0, 0.9, 1000),
    ],
)
def test_boxes_are_kept_as_by_definition(
    count: int, size: float, iou_threshold: float, score_threshold: float | None, limit: int
) -> None:
    x = table(count, size, seed=count)
    found = SUPPRESS.reference(
        *operands(x), centred=False, iou_threshold=iou_threshold, score_threshold=score_threshold,
        limit=limit, count="n",
    )  # fmt: skip
    assert found.dtype == np.int64
    expected = by_definition(x, iou_threshold, score_threshold, limit)
    assert found.tolist() == [list(row) for row in expected]


def test_boxes_that_are_no_numbers_overlap_nothing() -> None:
    x = table(40, 0.5, seed=1)
    x[0, -4:, 3] = np.nan
    x[1, -2:, 5] = np.inf
    found = SUPPRESS.reference(
        *operands(x), centred=False, iou_threshold=0.5, score_threshold=None, limit=1000, count="n"
    ).tolist()
    assert [0, 0, 3] in found
    assert [0, 1, 3] in found
    assert found == [list(row) for row in by_definition(x, 0.5, None, 1000)]


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threshold", [None, 0.3, 0.0, -np.inf, np.inf, np.nan])
@pytest.mark.parametrize("limit", [-1, 0, 5, 40, 1000])
@pytest.mark.parametrize("centred", [False, True])
def test_the_kernel_keeps_the_same_boxes(
    centred: bool, threshold: float | None, limit: int, dtype: type, widest: CpuBackend
) -> None:
    """With equal scores, zeros of both signs, infinite scores, NaN, and boxes without area."""
    g = Maker()
    of = DTYPES[np.dtype(dtype).name]
    given = g.given("scores", B, 2, S, dtype=of), g.given("boxes", B, S, 4, dtype=of)
    attributes = {"centred": centred, "score_threshold": threshold, "limit": limit}
    outputs = [
        g.add("non_max_suppression", *given, iou_threshold=t, count=f"n{i}", **attributes)
        for i, t in enumerate((0.5, 0.0, 1.0, np.inf))
    ]
    model = Model(optimised(g.made(*outputs), halves=False), widest)
    assert [step.kind for step in model.steps].count("suppression") == len(outputs)
    for count in (0, 1, 15, 16, 17, 300):
        x = table(count, 0.5, seed=count).astype(dtype)
        x[:, 0, ::7], x[:, 0, 1::7] = 0.0, -0.0
        x[0, 1, 2::9], x[1, 1, 3::9], x[1, 0, 4::9] = np.nan, np.inf, -np.inf
        x[0, -1, 5::11], x[1, -2, 6::11] = np.nan, np.inf
        feeds = dict(zip(("scores", "boxes"), operands(x), strict=True))
        for found, t in zip(model.run(feeds), (0.5, 0.0, 1.0, np.inf), strict=True):
            expected = SUPPRESS.reference(*feeds.values(), iou_threshold=t, count="n", **attributes)
            np.testing.assert_array_equal(found, expected)
