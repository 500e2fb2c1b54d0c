"""The reduction of split-k and split keys, as Triton text: the last-arriving program adds up.

Each program of a tile stores its partial sums in a workspace, in float32, and increments the tile's
counter. The last-arriving program, which finds all others counted, adds up all parts in order, so
that results do not depend on the order of arrival. It resets the counter for the next launch.

The threads of a block use ordinary stores and loads, and one thread does the atomic addition. By
the memory model of PTX (ISA, chapter "Memory Consistency Model") three links order the stores of
one block before the loads of another:

1. a barrier of the block, after its stores and before the addition,
2. the addition at the scope of the device, which releases the stores before it and acquires what
   the additions before it released,
3. a barrier of the block, after the addition and before its loads: without it, only the thread of
   the addition has acquired the stores.

L1 caches are not coherent; the acquisition covers that, and cache operators have no part in the
order. Loads still bypass L1 (`.cg`), because each part is read only once.

On AMD's chips this order does not hold: in Triton's code for gfx942 a barrier does not wait for the
stores of other wavefronts. Such kernels are compiled, but not run yet.
"""

from __future__ import annotations


def arrival_lines(counter: str) -> list[str]:
    """Lines after the stores of a part that count the program. `arrived` is the number of programs
    counted before it.

    Args:
        counter: the address of the tile's counter, an int32 that is zero before the launch.
    """
    return [
        "tl.debug_barrier()",
        f'arrived = tl.atomic_add({counter}, 1, sem="acq_rel", scope="gpu")',
        "tl.debug_barrier()",
    ]


def departure_line(counter: str) -> str:
    """The line of the last-arriving program that resets the counter for the next launch."""
    return f"tl.store({counter}, 0)"


def part_load(place: str, mask: str | None = None) -> str:
    """Returns the load of partial sums of any program, after `arrival_lines`; 0 where the mask is
    false."""
    masked = "" if mask is None else f", mask={mask}, other=0.0"
    return f'tl.load({place}{masked}, cache_modifier=".cg")'
