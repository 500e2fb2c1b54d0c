"""Recorded machines against their datasheets, and the documents they are stored as."""

import copy
import dataclasses
import json
import sys
from importlib import resources
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.core.product import product_types
from ftuner.errors import HardwareError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import from_document, load_recorded, recorded_names, to_document

CPU_PEAKS = {
    # name: (cores, clock in GHz, float32 lanes, multiply-adds a cycle, ISAs)
    "core-i7-8700": (6, 4.3, 8, 2, ("sse2", "avx2")),
    "epyc-milan-2": (2, 3.22, 8, 2, ("sse2", "avx2")),
    "graviton2": (64, 2.5, 4, 2, ("neon",)),
    "xeon-8375c": (32, 2.9, 16, 2, ("sse2", "avx2", "avx512")),
}
GPU_PEAKS = {
    # name: (architecture, float32 TFLOP/s, float16 matrix TFLOP/s, DRAM GB/s)
    "v100": ("sm_70", 15.7, 125, 900),
    "a100-sxm-80gb": ("sm_80", 19.5, 312, 2039),
    "h100-sxm": ("sm_90", 66.9, 989.4, 3350),
    "h200": ("sm_90", 66.9, 989.4, 4800),
    "rtx3090": ("sm_86", 35.6, 71, 936.2),
    "rtx4090": ("sm_89", 82.6, 165.2, 1008),
    "l4": ("sm_89", 30.3, 121, 300),
    "l40s": ("sm_89", 91.6, 362.05, 864),
    "b200": ("sm_100", 75, 2250, 7700),
    "mi300x": ("gfx942", 163.4, 1307.4, 5300),
}


WARP_THREADS = {"gfx942": 64}
"""By architecture; all others have warps of 32 threads."""


@pytest.mark.parametrize("name", sorted(GPU_PEAKS))
def test_warps(name: str) -> None:
    hardware = load_recorded(name)
    assert isinstance(hardware, GpuHardware)
    assert hardware.warp_threads == WARP_THREADS.get(hardware.architecture, 32)
    assert hardware.provenance["warp_threads"] == "datasheet"


def test_names() -> None:
    assert recorded_names() == tuple(sorted([*CPU_PEAKS, *GPU_PEAKS]))
    assert recorded_names("cpu") == tuple(sorted(CPU_PEAKS))
    assert recorded_names("gpu") == tuple(sorted(GPU_PEAKS))


def test_machines_like_a_cpu_are_found_without_those_of_gpus() -> None:
    """A first load waits for them."""
    script = (
        "import sys; from ftuner.hardware.priors import recorded_cpus; assert recorded_cpus(); "
        "print(*(name for name in sys.modules if 'gpu' in name))"
    )
    done = run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", recorded_names())
def test_file_and_machine_have_one_name(name: str) -> None:
    assert load_recorded(name).name == name


@pytest.mark.parametrize("name", sorted(CPU_PEAKS))
def test_cpu_peak_is_the_datasheets(name: str) -> None:
    cores, clock_ghz, lanes, fma, isas = CPU_PEAKS[name]
    hardware = load_recorded(name)
    assert isinstance(hardware, CpuHardware)
    assert tuple(isa.name for isa in hardware.isas) == isas
    peak = cores * clock_ghz * 1e9 * lanes * 2 * fma
    for dtype, share in ((FLOAT32, 1.0), (FLOAT64, 0.5)):
        found = hardware.peak_flops_per_s(hardware.widest, product_types(dtype), cores)
        assert found == pytest.approx(share * peak)


@pytest.mark.parametrize("name", sorted(CPU_PEAKS))
def test_cpu_hierarchy(name: str) -> None:
    hardware = load_recorded(name)
    assert isinstance(hardware, CpuHardware)
    assert [m.name for m in hardware.levels] == ["L1", "L2", "L3", "DRAM"]
    for inner, outer in zip(hardware.levels, hardware.levels[1:], strict=False):
        assert inner.capacity_bytes < outer.capacity_bytes
        assert inner.shared_by_cores <= outer.shared_by_cores <= hardware.cores
        assert inner.bandwidth_bytes_per_s > outer.bandwidth_bytes_per_s
        assert inner.bandwidth_all_bytes_per_s > outer.bandwidth_all_bytes_per_s
    l1, *_ = hardware.levels
    loads = hardware.widest.load_per_cycle * hardware.widest.vector_bytes * hardware.clock_hz
    assert l1.bandwidth_bytes_per_s == pytest.approx(loads, rel=0.01)
    for level in hardware.levels:
        scale = level.bandwidth_all_bytes_per_s / level.bandwidth_bytes_per_s
        assert 1 <= scale <= hardware.cores * 1.001
        if level.associativity:
            sets = level.capacity_bytes / (level.line_bytes * level.associativity)
            assert sets == int(sets)


@pytest.mark.parametrize("name", sorted(GPU_PEAKS))
def test_gpu_peak_is_the_datasheets(name: str) -> None:
    architecture, vector_tflops, matrix_tflops, dram_gb_per_s = GPU_PEAKS[name]
    hardware = load_recorded(name)
    assert isinstance(hardware, GpuHardware)
    assert hardware.architecture == architecture
    assert hardware.vector_flops_per_s["float32"] == pytest.approx(vector_tflops * 1e12)
    assert hardware.matrix_flops_per_s["float16"] == pytest.approx(matrix_tflops * 1e12)
    assert hardware.dram_bandwidth_bytes_per_s == pytest.approx(dram_gb_per_s * 1e9)
    assert hardware.l2_bandwidth_bytes_per_s > hardware.dram_bandwidth_bytes_per_s
    assert hardware.shared_bytes_per_block <= hardware.shared_bytes_per_multiprocessor
    # Each multiprocessor does 64 or 128 float32 multiply-adds a cycle, at the clock or boosted.
    per_cycle = vector_tflops * 1e12 / (hardware.multiprocessors * hardware.clock_hz * 2)
    assert min(abs(per_cycle / units - 1) for units in (64, 128)) < 0.1


@pytest.mark.parametrize("name", recorded_names())
def test_every_number_has_a_provenance(name: str) -> None:
    hardware = load_recorded(name)
    parts: list[Any] = [hardware]
    if isinstance(hardware, CpuHardware):
        parts += [*hardware.isas, *hardware.levels]
    else:
        parts += hardware.matrix_instructions
    apart = {
        "name", "isas", "levels", "matrix_instructions", "provenance", "tuning", "correction",
    }  # fmt: skip
    for part in parts:
        # What a machine does not have needs none.
        named = {f.name for f in dataclasses.fields(part) if getattr(part, f.name) != 0.0}
        assert named - set(part.provenance) <= apart


@pytest.mark.parametrize("name", recorded_names())
def test_round_trip(name: str) -> None:
    hardware = load_recorded(name)
    document = json.loads(json.dumps(to_document(hardware)))
    again = from_document(document)
    assert again == hardware
    assert again.provenance == hardware.provenance
    assert to_document(again) == document
    if isinstance(hardware, CpuHardware):
        assert isinstance(again, CpuHardware)
        assert again.fingerprint == hardware.fingerprint
        assert [i.provenance for i in again.isas] == [i.provenance for i in hardware.isas]


def test_document_is_a_copy() -> None:
    hardware = load_recorded("v100")
    to_document(hardware)["matrix_flops_per_s"]["float16"] = 1.0
    assert load_recorded("v100").matrix_flops_per_s["float16"] == 125e12


def test_unknown_name() -> None:
    with pytest.raises(HardwareError, match="Did you mean 'h100-sxm'") as error:
        load_recorded("H100-SMX")
    for name in recorded_names():
        assert name in str(error.value)
    with pytest.raises(HardwareError, match=r"expected the path of a \.toml file") as error:
        load_recorded("../model")
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize("kind", [str, Path])
def test_file_by_its_path(tmp_path: Path, kind: type[str] | type[Path]) -> None:
    file = resources.files("ftuner.hardware") / "machines" / "graviton2.toml"
    (tmp_path / "mine.toml").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    assert load_recorded(kind(tmp_path / "mine.toml")) == load_recorded("graviton2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*mine.toml: No such file"),
        (b"kind = cpu", "mine.toml: Invalid value"),
        (b"\xff", "mine.toml: 'utf-8' codec"),
        (b"kind = 'cpu'", "mine.toml: hardware lacks 'name'"),
    ],
)
def test_damaged_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HardwareError, match=message):
        load_recorded(path)


def cpu_document() -> dict[str, Any]:
    return to_document(load_recorded("xeon-8375c"))


DAMAGES = [
    (("kind",), "tpu", "kind is 'tpu'"),
    (("kind",), None, "kind is None"),
    (("kind",), ["cpu"], "kind is"),
    (("cores",), 2.5, r"hardware\.cores is 2\.5 \(float\); expected an integer"),
    (("cores",), True, r"hardware\.cores is True"),
    (("cores",), 0, r"hardware\.cores is 0"),
    (("cores",), "two", r"hardware\.cores"),
    (("clock_hz",), -1.0, r"hardware\.clock_hz"),
    (("clock_hz",), float("nan"), r"hardware\.clock_hz is nan"),
    (("clock_hz",), float("inf"), r"hardware\.clock_hz is inf"),
    (("name",), 7, r"hardware\.name is 7 \(int\); expected a string"),
    (("isas",), [], r"hardware\.isas is empty"),
    (("isas",), {}, r"hardware\.isas"),
    (("isas", 1), 3, r"hardware\.isas\[1\] is 3"),
    (("isas", 1, "fused"), 1, r"hardware\.isas\[1\]\.fused"),
    (("isas", 1, "name"), "sse2", r"hardware\.isas repeats a name"),
    (("isas", 1, "name"), "neon", r"hardware\.isas has 'neon'; known of x86_64 are sse2, avx2"),
    (("isas", 1, "vector_registers"), 32, "vector_registers of avx2 is 32; expected 16"),
    (("architecture",), "riscv64", "known of riscv64 are none"),
    (("levels", 0, "capacity_bytes"), None, r"hardware\.levels\[0\]\.capacity_bytes"),
    (("levels", 0, "associativity"), -1, r"hardware\.levels\[0\]\.associativity"),
    (("levels", 0, "colour"), 1, r"unknown entries \['colour'\]"),
    (("provenance", "clock_hz"), "guessed", "guessed"),
    (("provenance", "clock"), "probed", "clock"),
    (("provenance", "clock_hz"), 3, "provenance.clock_hz"),
    (("provenance",), [], r"hardware\.provenance"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGES)
def test_damaged_document(path: tuple[Any, ...], value: Any, message: str) -> None:
    document = copy.deepcopy(cpu_document())
    table: Any = document
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    with pytest.raises(HardwareError, match=message):
        from_document(document)


@pytest.mark.parametrize("key", [k for k in cpu_document() if k not in ("provenance", "tuning")])
def test_missing_entry(key: str) -> None:
    document = cpu_document()
    del document[key]
    with pytest.raises(HardwareError, match=key):
        from_document(document)


def test_provenance_may_be_missing() -> None:
    document = cpu_document()
    del document["provenance"]
    assert from_document(document) == load_recorded("xeon-8375c")


@pytest.mark.parametrize("value", [{}, {"float32": 0.0}, {"float32": "fast"}, {3: 1.0}, []])
def test_damaged_gpu_rates(value: Any) -> None:
    document = to_document(load_recorded("v100"))
    document["vector_flops_per_s"] = value
    with pytest.raises(HardwareError, match="vector_flops_per_s"):
        from_document(document)


def test_not_a_table() -> None:
    with pytest.raises(HardwareError, match="expected a table"):
        from_document([])  # type: ignore[arg-type]


def test_integers_are_numbers() -> None:
    document = cpu_document()
    document["clock_hz"] = 3_000_000_000
    hardware = from_document(document)
    assert isinstance(hardware, CpuHardware)
    assert isinstance(hardware.clock_hz, float)
