"""Programs that each leave a part of a result, as Triton text: the last one to arrive adds them up.

Each program of a tile stores its part in a workspace, in float32, and adds one to the tile's
counter. The one that finds all others counted reads all parts in their order, whichever arrived
first, so that results do not depend on who came last; it sets the counter back to zero for the next
launch.

Stores and loads of a block's threads are ordinary, and one thread of it does the atomic addition.
By the memory model of PTX (ISA, chapter "Memory Consistency Model") three links order the stores of
one block before the loads of another:

1. a barrier of the block, after its stores and before the addition,
2. the addition itself at the scope of the device, which releases what is stored before it, and
   acquires what the additions before it released,
3. a barrier of the block, after the addition and before its loads: without one, only the thread
   that did the addition has acquired anything.

L1 caches of multiprocessors are not coherent. The acquisition covers them, and cache operators do
not take part in the order. Still, each part is read once: loads name L2 (`.cg`), where the parts
are, and leave L1 alone.

On AMD's chips the order does not hold: in what Triton compiles for gfx942, a barrier does not wait
for the stores of other wavefronts. Such kernels are compiled, and run nowhere yet.
"""

from __future__ import annotations


def arrival_lines(counter: str) -> list[str]:
    """After the stores of a part: count this program. `arrived` is the number of programs that came
    before it.

    Args:
        counter: The address of the tile's counter, a 32-bit integer that begins at zero.
    """
    return [
        "tl.debug_barrier()",
        f'arrived = tl.atomic_add({counter}, 1, sem="acq_rel", scope="gpu")',
        "tl.debug_barrier()",
    ]


def departure_line(counter: str) -> str:
    """In the last program to arrive: make the counter ready for the next launch."""
    return f"tl.store({counter}, 0)"


def part_load(place: str, mask: str | None = None) -> str:
    """The load of what any of the programs stored, after `arrival_lines`; zero where the mask is
    false."""
    masked = "" if mask is None else f", mask={mask}, other=0.0"
    return f'tl.load({place}{masked}, cache_modifier=".cg")'
