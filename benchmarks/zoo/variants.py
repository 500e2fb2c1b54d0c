"""Other files of the same architectures: other opsets and precisions, other exporters, and what
optimisers make of a file."""

import importlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.zoo.architecture import Architecture, Fields, Size
from benchmarks.zoo.exporting import (
    MAKERS,
    Exported,
    ExportError,
    built,
    exported,
    kept,
    key,
    reason,
    write,
)

Change = Callable[[Path, Path, str], None]
"""`change(source, target, name)` writes another file of the architecture of that name."""
EXPORTED_OPSETS = (17, 18, 19, 23, 24, 25)
"""Opsets that torch's exporter writes, other than its default."""
CONVERTED_OPSETS = (21, 22, 26, 27, 28)
"""Opsets to which onnx converts the file of the nearest opset before."""


@dataclass(frozen=True)
class Variant:
    """A way to make a file of an architecture that is not the default of torch's exporter."""

    name: str
    title: str
    """As the page calls it."""
    options: Fields = field(default_factory=dict)
    """Of torch's exporter, if the variant is exported."""
    change: Change | None = None
    """Makes the file from the one of the variant `source`; a variant without is exported."""
    source: str = ""
    """The variant that is changed; the plain file if empty."""
    half: bool = False
    """Computes in float16."""
    half_ends: bool = False
    """Also has inputs and outputs in float16."""
    makers: tuple[str, ...] = ()
    """Packages that the file depends on, beside those of the plain file."""


def variant_of(row: Architecture, size: Size, variant: Variant | None) -> Exported:
    """A variant of the file of an architecture, from the cache or made now; the plain one for None.

    Raises:
        ExportError: it, or the plain file, cannot be made.
    """
    plain = exported(row, size)
    if variant is None:
        return plain

    def make(folder: Path) -> None:
        target = Exported(folder, folder).model
        if variant.change is not None:
            source = variant_of(row, size, VARIANTS[variant.source] if variant.source else None)
            # ONNX Runtime's sessions of one process share settings of threads, which differ between
            # those of optimisers and those that are compared.
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                process.submit(_change, variant.name, source.model, target, row.name).result()
            return
        network = built(row, size)
        write(row, network.half() if variant.half else network, target, **variant.options)

    name = key(row, size, (*MAKERS, "onnx", *_makers(variant)))
    folder = kept(f"{size.name}-{variant.name}", name, make)
    return Exported(folder, plain.folder, variant.half, variant.half_ends)


def _change(variant: str, source: Path, target: Path, name: str) -> None:
    change = VARIANTS[variant].change
    assert change is not None
    try:
        change(source, target, name)
    except Exception as error:  # Tools raise whatever they meet, and not all of it can be pickled.
        raise ExportError(reason(error)) from None


def _makers(variant: Variant) -> tuple[str, ...]:
    before = _makers(VARIANTS[variant.source]) if variant.source else ()
    return (*before, *variant.makers)


def _converted(opset: int) -> Change:
    def change(source: Path, target: Path, name: str) -> None:
        onnx = importlib.import_module("onnx")
        converter = importlib.import_module("onnx.version_converter")
        onnx.save(converter.convert_version(onnx.load(source), opset), target)

    return change


def _optimised_by_onnxruntime(level: str) -> Change:
    """The file that a session of ONNX Runtime saves."""

    def change(source: Path, target: Path, name: str) -> None:
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(target)
        # Blocked channels depend on the machine, and are read by ONNX Runtime alone.
        runtime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"],
                                 disabled_optimizers=["NchwcTransformer"])  # fmt: skip

    return change


FAMILIES = {
    "gpt2": ("gpt2",), "bart": ("bart", "mbart", "whisper", "plbart"), "t5": ("t5", "umt5"),
    "vit": ("vit", "deit"), "clip": ("clip",), "phi": ("phi",), "conformer": ("conformer",),
}  # fmt: skip
"""Families of networks that the optimiser of transformers tells apart, by parts of rows' names; all
others are taken for `bert`, as that optimiser's users do."""


def _optimised_as_transformer(source: Path, target: Path, name: str) -> None:
    optimiser = importlib.import_module("onnxruntime.transformers.optimizer")
    parts = name.split("-")
    family = next((f for f, names in FAMILIES.items() if {*names} & {*parts}), "bert")
    model = optimiser.optimize_model(str(source), model_type=family, opt_level=0)
    model.save_model_to_file(str(target))


def _in_half(keep_io_types: bool) -> Change:
    def change(source: Path, target: Path, name: str) -> None:
        onnx = importlib.import_module("onnx")
        float16 = importlib.import_module("onnxruntime.transformers.float16")
        model = float16.convert_float_to_float16(onnx.load(source), keep_io_types=keep_io_types)
        onnx.save(model, target)

    return change


def _in_half_by_common(source: Path, target: Path, name: str) -> None:
    onnx = importlib.import_module("onnx")
    float16 = importlib.import_module("onnxconverter_common.float16")
    onnx.save(float16.convert_float_to_float16(onnx.load(source)), target)


def _simplified(source: Path, target: Path, name: str) -> None:
    onnx = importlib.import_module("onnx")
    model, checked = importlib.import_module("onnxsim").simplify(onnx.load(source))
    if not checked:
        raise ValueError("onnxsim's own check fails")
    onnx.save(model, target)


def _slimmed(source: Path, target: Path, name: str) -> None:
    onnx = importlib.import_module("onnx")
    onnx.save(importlib.import_module("onnxslim").slim(onnx.load(source)), target)


def _before(opset: int) -> str:
    """The variant of the nearest exported opset before another; empty for the plain file."""
    return f"opset-{max(EXPORTED_OPSETS)}" if opset > max(EXPORTED_OPSETS) else ""


TRACED: dict[str, Any] = {"dynamo": False}
RUNTIME, COMMON, SIMPLIFIER, SLIMMER = (
    ("onnxruntime",), ("onnxconverter-common",), ("onnxsim",), ("onnxslim",),
)  # fmt: skip
ROWS = (
    *(Variant(f"opset-{n}", f"opset {n}", {"opset_version": n}) for n in EXPORTED_OPSETS),
    *(Variant(f"opset-{n}", f"opset {n}, converted by onnx", change=_converted(n),
              source=_before(n)) for n in CONVERTED_OPSETS),
    Variant("ort-extended", "optimised by ONNX Runtime, level extended",
            change=_optimised_by_onnxruntime("ORT_ENABLE_EXTENDED"), makers=RUNTIME),
    Variant("ort-all", "optimised by ONNX Runtime, level all",
            change=_optimised_by_onnxruntime("ORT_ENABLE_ALL"), makers=RUNTIME),
    Variant("ort-transformers", "optimised by `onnxruntime.transformers`",
            change=_optimised_as_transformer, makers=RUNTIME),
    Variant("float16", "float16 by `onnxruntime.transformers`", change=_in_half(False),
            half=True, half_ends=True, makers=RUNTIME),
    Variant("float16-inside", "float16 between inputs and outputs of float32",
            change=_in_half(True), half=True, makers=RUNTIME),
    Variant("float16-common", "float16 by onnxconverter-common", change=_in_half_by_common,
            half=True, half_ends=True, makers=COMMON),
    Variant("float16-torch", "exported from a network in float16", half=True, half_ends=True),
    Variant("traced", "torch's older exporter", TRACED),
    Variant("traced-transformers", "of the older exporter, optimised by `onnxruntime.transformers`",
            change=_optimised_as_transformer, source="traced", makers=RUNTIME),
    Variant("simplified", "simplified by onnxsim", change=_simplified, makers=SIMPLIFIER),
    Variant("slimmed", "simplified by onnxslim", change=_slimmed, makers=SLIMMER),
)  # fmt: skip
VARIANTS = {row.name: row for row in ROWS}
assert len(VARIANTS) == len(ROWS)
"""Names are unique."""
