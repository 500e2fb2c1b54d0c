"""`python -m tests.emulated MACHINE`: keep a recorded machine's rates as those of this one.

An emulator's own rates say nothing, and to probe it takes minutes. The cores and caches are as the
system tells them."""

import sys
from dataclasses import replace
from itertools import zip_longest

from ftuner.codegen.llvm.objects.jit import has_instruction
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.hardware.recorded import load_recorded
from ftuner.hardware.system import read_system
from ftuner.runtime.cache import default_cache
from ftuner.runtime.cpu.session import keep_hardware


def with_rates_of(machine: str) -> CpuHardware:
    """This machine's description with the rates of a recorded one."""
    facts, recorded = read_system(), load_recorded(machine)
    assert isinstance(recorded, CpuHardware)
    *cached, memory = recorded.levels
    levels = (
        replace(
            rates or cached[-1], name=c.name, capacity_bytes=c.capacity_bytes,
            line_bytes=c.line_bytes, associativity=c.associativity,
            shared_by_cores=c.shared_by_cores,
        )
        for c, rates in zip_longest(facts.caches, cached[: len(facts.caches)])
    )  # fmt: skip
    return replace(
        recorded, name=f"emulated-{facts.cores}", model_name=facts.model_name, cores=facts.cores,
        page_bytes=facts.page_bytes, levels=(*levels, memory),
        isas=tuple(map(with_narrow_rates, recorded.isas)),
    )  # fmt: skip


def with_narrow_rates(isa: Isa) -> Isa:
    """An ISA in which each multiply-add that this CPU has is as fast as that of float32."""
    rows = instruction_set(isa.name).multiply_adds
    had = [r.emitter for r in rows if r.flag and has_instruction(r)]
    return replace(isa, **{f"{name}_per_cycle": isa.fma_per_cycle for name in had})


if __name__ == "__main__":
    keep_hardware(default_cache(), with_rates_of(sys.argv[1]))
