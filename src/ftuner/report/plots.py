"""Draws plans to files with matplotlib: the patches of C beside the roofline."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ftuner.core.product import extents_text
from ftuner.core.units import duration, rate
from ftuner.errors import ConfigurationError
from ftuner.report.explain import BlockExplanation, Explanation
from ftuner.report.picture import COLOURS, ukernels_by_area, workers_label

SUFFIXES = (".svg", ".png")
_SIZE_INCHES = (11.0, 5.0)
_DPI = 150
_LABEL_SHARE = 0.06
"""The least width and height, as a fraction of C, of a patch with a label."""
_MAX_WAVES = 16
"""Most waves in the legend."""
_MARGIN = 4.0
"""Factor by which the axis of the roofline exceeds its ridges and the product, on both sides."""


def save_picture(explanation: Explanation | BlockExplanation, path: str | Path) -> None:
    """Draw the patches by worker and uKernel, or the tiles of a GPU by wave, beside the roofline.
    The suffix of the file chooses SVG or PNG.

    Raises:
        ConfigurationError: another suffix, matplotlib is not installed, or the file cannot be
            written.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(
            f"cannot save a picture as {target.name!r}; expected a name that ends in "
            f"{' or '.join(SUFFIXES)}"
        )
    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            'saving pictures needs matplotlib; install it with: pip install "ftuner[plot]"'
        )
    # Imported by name: most processes never draw.
    figure = import_module("matplotlib.figure").Figure(_SIZE_INCHES, layout="constrained")
    patches, roofline = figure.subplots(1, 2, width_ratios=(2, 1))
    if isinstance(explanation, BlockExplanation):
        _draw_waves(patches, explanation)
    else:
        _draw_patches(patches, explanation)
    _draw_roofline(roofline, explanation)
    try:
        figure.savefig(target, dpi=_DPI)
    except OSError as error:
        raise ConfigurationError(f"cannot write {target}: {error.strerror or error}") from error


def _draw_patches(axes: Any, explanation: Explanation) -> None:
    rectangle = import_module("matplotlib.patches").Rectangle
    contraction = explanation.contraction
    regions = explanation.regions()
    names = ukernels_by_area(regions)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    for region in regions:
        name = str(region.kernel)
        (top, bottom), (left, right) = region.rows, region.columns
        axes.add_patch(
            rectangle((left, top), right - left, bottom - top, facecolor=colours[name],
                      edgecolor="white", linewidth=0.8)
        )  # fmt: skip
        wide = right - left >= _LABEL_SHARE * contraction.n
        if wide and bottom - top >= _LABEL_SHARE * contraction.m:
            label = f"{workers_label(region.workers)}\n{name}"
            axes.text((left + right) / 2, (top + bottom) / 2, label, ha="center", va="center",
                      fontsize=8)  # fmt: skip
    for workers in {region.workers for region in regions}:
        own = [region for region in regions if region.workers == workers]
        top, left = min(r.rows[0] for r in own), min(r.columns[0] for r in own)
        bottom, right = max(r.rows[1] for r in own), max(r.columns[1] for r in own)
        axes.add_patch(
            rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="black",
                      linewidth=1.6)
        )  # fmt: skip
    handles = [rectangle((0, 0), 1, 1, facecolor=colours[name], label=name) for name in names]
    title = (
        f"{extents_text(contraction)} {contraction.types}, "
        f"{explanation.hardware.name} {explanation.isa.name}"
    )
    _finish(axes, explanation, title, "uKernel", handles)


def _finish(
    axes: Any, explanation: BlockExplanation | Explanation, title: str, what: str, handles: Any
) -> None:
    """Set the titles and limits of the drawing of C, and the legend of what its colours are."""
    axes.legend(handles=handles, title=what, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_xlim(0, explanation.contraction.n)
    axes.set_ylim(explanation.contraction.m, 0)
    axes.set_xlabel("n")
    axes.set_ylabel("m")
    axes.set_title(title)


def _draw_waves(axes: Any, explanation: BlockExplanation) -> None:
    """Draw the tiles of the first batch element by wave, to scale."""
    rectangle = import_module("matplotlib.patches").Rectangle
    plan, contraction = explanation.plan, explanation.contraction
    m, n, width = contraction.m, contraction.n, plan.kernel.main.bn
    seen: dict[int, str] = {}
    for tile, first, last in plan.bands:
        for top in range(first, last, tile.bm):
            for left in range(0, n, width):
                wave = plan.wave(top, left)
                seen[wave] = COLOURS[wave % len(COLOURS)]
                axes.add_patch(
                    rectangle((left, top), min(width, n - left), min(tile.bm, last - top),
                              facecolor=seen[wave], edgecolor="white", linewidth=0.4)
                )  # fmt: skip
    waves = sorted(seen)[:_MAX_WAVES]
    handles = [rectangle((0, 0), 1, 1, facecolor=seen[w], label=str(w + 1)) for w in waves]
    tiles = " + ".join(str(tile) for tile in plan.kernel.tiles)
    product = f"{m} x {n} x {contraction.k} {explanation.multiply}"
    _finish(axes, explanation, f"{product}, {explanation.hardware.name}: {tiles}", "wave", handles)


def _draw_roofline(axes: Any, explanation: Explanation | BlockExplanation) -> None:
    line = explanation.roofline
    here = line.flops_per_byte
    ridges = [line.peak_flops_per_s / roof.bandwidth_bytes_per_s for roof in line.roofs]
    low, high = min(here, *ridges) / _MARGIN, max(here, *ridges) * _MARGIN
    for roof, ridge in zip(line.roofs, ridges, strict=True):
        peak = line.peak_flops_per_s / 1e9
        axes.plot(
            (low, ridge, high),
            (low * roof.bandwidth_bytes_per_s / 1e9, peak, peak),
            label=f"{roof.level}, {rate(roof.bandwidth_bytes_per_s, 'B/s')}",
            linewidth=2.2 if roof.level == line.home else 0.9,
        )
    axes.axvline(here, color="grey", linestyle=":", linewidth=0.9)
    axes.plot(
        [here],
        [line.predicted_flops_per_s / 1e9],
        "k*",
        markersize=11,
        label=f"estimate, {duration(explanation.estimate.seconds)}",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("flop / byte")
    axes.set_ylabel("Gflop/s")
    axes.set_title(
        f"{line.fraction_of_peak:.0%} of {rate(line.peak_flops_per_s, 'flop/s')}", fontsize=10
    )
    axes.legend(fontsize=8, loc="lower right")
