"""`python -m benchmarks.gpu_transfer`: the choice of tiles on every recorded GPU, by arithmetic.

Writes a page with the tile that the planner chooses for each chip and shape, and beside it what has
been measured: our own launches on an H200, timings that PyTorch's Inductor logged, and the tiles
that vLLM's tuning chose for mixtures of experts (`published_tiles.json`). No GPU is needed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.markdown import number, paragraphs, table
from benchmarks.results import load
from ftuner.core.dtype import FLOAT16
from ftuner.core.gpu.tile import BlockTile
from ftuner.cost.gpu.product import chip_of, tiling_of
from ftuner.cost.gpu.tile import ProductForm, tile_cost
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded, recorded_names
from ftuner.planner.gpu.candidates import Candidate
from ftuner.planner.gpu.plan import ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.ukernels.gpu.filters import block_tiles
from ftuner.ukernels.gpu.library import build_gpu_library

PAGE = Path("docs/gpu-transfer.md")
PUBLISHED = Path(__file__).with_name("published_tiles.json")
MEASURED = Path(__file__).with_name("results") / "nvidia-h200" / "gpu-regret.json"
SHAPES = ((1, 4096, 4096), (16, 4096, 14336), (64, 4096, 4096), (128, 3072, 768),
          (333, 6144, 4096), (992, 768, 3072), (1024, 1024, 16384), (4096, 4096, 4096))  # fmt: skip
TILE = re.compile(r"(\d+)x(\d+)x(\d+)/(\d+)w(\d+)s(?:, split-k (\d+))?")


class Launch(NamedTuple):
    """One measured launch of a product by one tile."""

    tile: BlockTile
    split_k: int
    seconds: float


class Measured(NamedTuple):
    """Launches of one product on one chip."""

    product: tuple[int, int, int]
    launches: list[Launch]


def parsed(text: str) -> tuple[BlockTile, int]:
    """The tile and the split-k of a name such as `64x32x128/4w6s, split-k 2`."""
    found = TILE.fullmatch(text)
    assert found is not None, text
    *sizes, split_k = found.groups()
    return BlockTile(*map(int, sizes)), int(split_k or 1)


def gpu(name: str) -> GpuHardware:
    """A recorded chip."""
    found = load_recorded(name)
    assert isinstance(found, GpuHardware)
    return found


def seconds(
    hardware: GpuHardware, tile: BlockTile, problem: ProductProblem, split_k: int, chained: bool
) -> float | None:
    """The estimate by one tile, whether or not the library has it; None if it does not fit."""
    cost = tile_cost(hardware, tile, ProductForm(FLOAT16, "float16"))
    if cost is None:
        return None
    chip, tiling = chip_of(hardware, FLOAT16), tiling_of(
        (cost,), problem.n, problem.k, problem.batch, chained
    )  # fmt: skip
    candidate = Candidate(chip, (tile,), tiling, hardware.tuning)
    estimate = candidate.estimate(-(-problem.m // tile.bm), 0, split_k)
    return estimate.seconds(problem.m, chip.overlap_exponent)


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: Pearson's of ranks, equal values sharing theirs; NaN if either is constant."""

    def ranks(values: list[float]) -> npt.NDArray[np.float64]:
        array = np.array(values)
        below = (array[:, None] > array).sum(axis=1)
        return below + (array[:, None] == array).sum(axis=1) / 2.0

    x, y = ranks(a), ranks(b)
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else float("nan")


def own_launches() -> Iterator[Measured]:
    """What was measured on an H200, by single tiles."""
    for case in load(MEASURED)["cases"]:
        m, n, k = map(int, case["label"].split()[-1].split("x"))
        launches = [
            Launch(*parsed(name.split(" ", 1)[1]), measured)
            for name, measured in case["timings"].items()
            if name != "chosen" and "+" not in name
        ]
        yield Measured((m, n, k), launches)


def published_launches(entry: Mapping[str, Any]) -> Iterator[Measured]:
    """The timings of one entry of `published_tiles.json`."""
    for product in entry["products"]:
        launches = [Launch(*parsed(name), ms / 1e3) for name, ms in product["ms"].items()]
        yield Measured((product["m"], product["n"], product["k"]), launches)


def correlated(
    hardware: GpuHardware, measured: Iterator[Measured], chained: bool
) -> Iterator[tuple[str, int, float, float]]:
    """Label, launches, rank correlation of estimate and time, and the time of the launch with the
    least estimate over the least time."""
    for (m, n, k), launches in measured:
        pairs = [
            (launch.seconds, estimate)
            for launch in launches
            if (
                estimate := seconds(
                    hardware, launch.tile, ProductProblem(m, n, k), launch.split_k, chained
                )
            )
            is not None
        ]
        times, estimates = [p[0] for p in pairs], [p[1] for p in pairs]
        picked = times[int(np.argmin(estimates))]
        yield (
            f"{m}x{n}x{k}", len(pairs), rank_correlation(estimates, times), picked / min(times),
        )  # fmt: skip


def summary(found: Sequence[tuple[str, int, float, float]]) -> tuple[int, float, float]:
    """Launches, the mean rank correlation and the mean ratio, of what `correlated` found."""
    _, counts, correlations, ratios = zip(*found, strict=True)
    return sum(counts), float(np.mean(correlations)), float(np.mean(ratios))


def expert_products(entry: Mapping[str, Any], tokens: int) -> tuple[ProductProblem, ProductProblem]:
    """Both products of a mixture of experts whose tokens are spread evenly: gate with up, down."""
    routed = tokens * entry["top_k"]
    active = min(entry["experts"], routed)
    m, hidden, intermediate = -(-routed // active), entry["hidden"], entry["intermediate"]
    return (
        ProductProblem(m, 2 * intermediate, hidden, active),
        ProductProblem(m, hidden, intermediate, active),
    )


def choices(entry: Mapping[str, Any]) -> Iterator[tuple[int, BlockTile, BlockTile, float | None]]:
    """Tokens, the published tile, the tile with the least estimate for both products, and the
    estimate by the former over that by the latter; None if the published tile does not fit."""
    hardware = gpu(entry["chip"])

    def estimate(tile: BlockTile, tokens: int) -> float | None:
        found = [seconds(hardware, tile, p, 1, False) for p in expert_products(entry, tokens)]
        known = [s for s in found if s is not None]
        return sum(known) if len(known) == len(found) else None

    copies = (True,) if hardware.asynchronous_copy else (False,)
    tiles = [t for t in block_tiles(FLOAT16.itemsize) if (t.stages > 2) in copies]
    for tokens, name in entry["tiles"].items():
        published, _ = parsed(name)
        known = {t: s for t in tiles if (s := estimate(t, int(tokens))) is not None}
        best = min(known, key=known.__getitem__)
        by_published = estimate(published, int(tokens))
        ratio = None if by_published is None else by_published / known[best]
        yield int(tokens), published, best, ratio


def plans() -> Iterator[str]:
    """The table of chosen plans."""
    rows = []
    for name in recorded_names():
        if not isinstance(load_recorded(name), GpuHardware):
            continue
        library = build_gpu_library(gpu(name), FLOAT16)
        planner, cells = product_planner_for(library), []
        for m, n, k in SHAPES:
            plan = planner.plan(ProductProblem(m, n, k))
            split_k = f", split-k {plan.split_k}" if plan.split_k > 1 else ""
            cells.append(" + ".join(map(str, plan.kernel.tiles)) + split_k)
        rows.append((name, f"{len(library.tiles)}", f"{len(library.kernels('k', 'k'))}", *cells))
    head = ("chip", "tiles kept", "kernels", *("x".join(map(str, shape)) for shape in SHAPES))
    yield from table(head, rows)


def correlations(document: Mapping[str, Any]) -> Iterator[str]:
    """The tables of estimates beside times."""
    own = "Our launches by single tiles (`benchmarks.gpu_regret`); constants were fitted to some"
    sources = [("h200", own, own_launches(), True)]
    sources += [
        (entry["chip"], entry["source"], published_launches(entry), False)
        for entry in document["timings"]
    ]
    for chip, source, measured, chained in sources:
        found = list(correlated(gpu(chip), measured, chained))
        count, mean, picked = summary(found)
        yield from paragraphs(
            f"### {chip}",
            f"{source}. {count} launches, mean rank correlation {mean:.2f}; picks take "
            f"{picked:.2f} of the least on average.",
        )
        head = ("product", "launches", "rank correlation", "time of the pick over the least")
        rows = [(label, str(n), number(rho), number(ratio)) for label, n, rho, ratio in found]
        yield from table(head, rows)


def tuned(document: Mapping[str, Any]) -> Iterator[str]:
    """The tables of tiles that were tuned on devices beside ours."""
    for entry in document["choices"]:
        found = list(choices(entry))
        heights = rank_correlation([float(p.bm) for _, p, _, _ in found],
                                   [float(b.bm) for _, _, b, _ in found])  # fmt: skip
        areas = rank_correlation([float(p.bm * p.bn) for _, p, _, _ in found],
                                 [float(b.bm * b.bn) for _, _, b, _ in found])  # fmt: skip
        yield from paragraphs(
            f"### {entry['chip']}: {entry['experts']} experts, {entry['top_k']} for each token",
            f"`{entry['source']}`; {entry['hidden']} features, {entry['intermediate']} inside. "
            f"Rank correlation of heights {heights:.2f}, of areas {areas:.2f}.",
        )
        rows = []
        # Neighbouring numbers of tokens with the same tiles share a row.
        for (published, best), run in groupby(found, lambda row: (row[1], row[2])):
            entries = list(run)
            tokens = str(entries[0][0])
            if len(entries) > 1:
                tokens += f" to {entries[-1][0]}"
            ratios = [ratio for *_, ratio in entries if ratio is not None]
            shown = number(max(ratios)) if ratios else "does not fit"
            rows.append((tokens, str(published), str(best), shown))
        head = ("tokens", "tuned on the device", "least estimate", "estimate of the former over it")
        yield from table(head, rows)


def page() -> Iterator[str]:
    """The lines of the page."""
    document = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    yield from paragraphs(
        "# Tiles of GPUs, chosen by arithmetic",
        "<!-- Written by python -m benchmarks.gpu_transfer. -->",
        "The hardware description is all that differs between chips: nothing here was measured by "
        "ftuner except on an H200. A tile is rows x columns x k steps of a stage / warps, stages. "
        "Elements are float16.",
        "## Plans",
    )
    yield from plans()
    yield from paragraphs(
        "## Estimates beside times",
        "Spearman's rank correlation between estimates and times over the launches of a product, "
        "and what the launch with the least estimate takes.",
    )
    yield from correlations(document)
    yield from paragraphs(
        "## Tiles that were tuned on devices",
        "vLLM's kernel loads rows through an index and pads those of each expert to whole tiles; "
        "the estimate is that of a batch of products by pointers, for evenly spread tokens. Tiles "
        "without stages (MI300X) are estimated with two. Which model has 128 experts of 1024 is "
        "assumed: Llama 4 Maverick on eight chips. Rank correlations are over numbers of tokens. "
        "The last column is the largest of its row: how much slower the tuned tile is by the "
        "estimate; where it is far above one, the estimate is wrong. Depths of k and stages that "
        "keep memory busy alike differ by less than 2%, so that these are not told apart.",
    )
    yield from tuned(document)


def main() -> None:
    """Writes the page."""
    PAGE.write_text("\n".join(page()), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
