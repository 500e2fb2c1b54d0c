"""From what a driver tells and a probe measures to a hardware model."""

from dataclasses import replace

import pytest
import torch

from ftuner.codegen.triton.microbenchmarks import READ_AT_ONCE, reads_source
from ftuner.core.dtype import BFLOAT16
from ftuner.cost.gpu.product import chip_of
from ftuner.cost.gpu.tile import sustained_flops_per_s
from ftuner.errors import HardwareError
from ftuner.hardware.recorded import from_document, to_document
from ftuner.runtime.gpu.kernels import Kernel
from ftuner.runtime.gpu.probe import DeviceFacts, Rates, hardware_of, nearest_recorded

H200 = DeviceFacts(
    name="NVIDIA H200", architecture="sm_90", multiprocessors=132, warp_threads=32,
    registers_per_multiprocessor=65_536, threads_per_multiprocessor=2048,
    shared_bytes_per_multiprocessor=233_472, shared_bytes_per_block=232_448,
    l2_bytes=62_914_560, dram_bytes=150_000_000_000,
)  # fmt: skip
RATES = Rates(4.3e12, 5.9e12, 1.6e-6, {"bfloat16": 7.9e14})


@pytest.mark.parametrize(
    ("name", "architecture", "recorded"),
    [
        ("NVIDIA H200", "sm_90", "h200"),
        ("NVIDIA H100 80GB HBM3", "sm_90", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "a100-sxm-80gb"),
        ("NVIDIA GeForce RTX 3090", "sm_86", "rtx3090"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "rtx4090"),
        ("NVIDIA L40S", "sm_89", "l40s"),
        ("NVIDIA L4", "sm_89", "l4"),
        ("Tesla V100-SXM2-16GB", "sm_70", "v100"),
    ],
)
def test_the_nearest_machine(name: str, architecture: str, recorded: str) -> None:
    facts = replace(H200, name=name, architecture=architecture)
    assert nearest_recorded(facts).name == recorded


def test_an_unknown_architecture() -> None:
    with pytest.raises(HardwareError, match=r"a chip of sm_62, which no recorded machine has"):
        nearest_recorded(replace(H200, architecture="sm_62"))


@pytest.mark.parametrize(("blocks", "rounds", "programs"), [(1, 3, 1), (3, 4, 2), (5, 2, 3)])
def test_reads_are_all_read(blocks: int, rounds: int, programs: int) -> None:
    """Each program adds up its blocks, in the interpreter."""
    source = torch.randn(blocks, READ_AT_ONCE)
    target = torch.empty(programs, READ_AT_ONCE)
    Kernel(reads_source(), torch.device("cpu"), None)(programs, source, target, blocks, rounds)
    for program in range(programs):
        walked = [source[(program + turn * programs) % blocks] for turn in range(rounds)]
        torch.testing.assert_close(target[program], torch.stack(walked).sum(0))


def test_what_is_told_and_measured_counts() -> None:
    found = hardware_of(H200, RATES)
    assert found.l2_bytes == H200.l2_bytes
    assert found.provenance["l2_bytes"] == "system"
    assert hardware_of(replace(H200, warp_threads=64), RATES).warp_threads == 64
    assert found.dram_bandwidth_bytes_per_s == RATES.dram_bandwidth_bytes_per_s
    assert found.provenance["dram_bandwidth_bytes_per_s"] == "probed"
    assert found.l2_bandwidth_bytes_per_s == RATES.l2_bandwidth_bytes_per_s
    assert found.matrix_flops_per_s["bfloat16"] == 7.9e14
    assert (
        found.matrix_flops_per_s["float16"] == nearest_recorded(H200).matrix_flops_per_s["float16"]
    )
    assert from_document(to_document(found)) == found


def test_what_is_measured_is_not_discounted_again() -> None:
    """A probe that measures what the recorded chip sustains gives the same sustained rates."""
    like = nearest_recorded(H200)
    tuning = like.tuning
    rates = Rates(
        tuning.sustained_dram_share * like.dram_bandwidth_bytes_per_s,
        like.l2_bandwidth_bytes_per_s,
        like.launch_s,
        {name: tuning.sustained_matrix_share * x for name, x in like.matrix_flops_per_s.items()},
    )
    found = hardware_of(H200, rates)
    for multiply in ("float16", "bfloat16", "tf32", "tf32x3", "float32"):
        assert sustained_flops_per_s(found, multiply) == pytest.approx(
            sustained_flops_per_s(like, multiply)
        )
    assert chip_of(found, BFLOAT16).dram_bytes_per_s == pytest.approx(
        chip_of(like, BFLOAT16).dram_bytes_per_s
    )
