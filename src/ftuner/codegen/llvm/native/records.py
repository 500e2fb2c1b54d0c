"""Layouts of the records that the runtime writes and native code reads.

A record is an array of 8-byte slots; each class names the slots of one kind. A *plan* is a header,
one record for each worker, and then the pack and band records that the workers' records point to. A
plan is immutable once written. What changes from call to call (addresses of arrays) is in the
*call* record.
"""

from __future__ import annotations

from ftuner.core.cpu.tile import MAX_OPERANDS, MAX_SEGMENTS
from ftuner.core.dtype import DTYPES
from ftuner.core.recurrence import MAX_TEAM

SLOT_BYTES = 8
"""Records are arrays of 8-byte slots."""
ALIGNMENT_BYTES = 64
"""What packed panels, and arrays of an arena or a workspace, begin at multiples of: a cache line.
Derived: where a line has 128 bytes, the longest known, two panels may share one, but no written
data."""
SLACK_BYTES = 256
"""Padding after packed operands and partial products: packing and reduction access up to a vector
beyond their end."""
CHUNK_BITS = 8
"""Bits of a number of a chunk in the range of a worker."""
MAX_CHUNKS_A_WORKER = (1 << CHUNK_BITS) - 1


class Call:
    """The addresses of one call.

    `WINDOW`: address of the `Window` that A is read through; any value if it is read otherwise.
    `ROWS`: rows of A. A plan for a range of rows does not know them.
    """

    PLAN, A, B, C, WORKSPACE, POOL, WINDOW, ROWS, OPERANDS = range(9)
    SIZE = OPERANDS + MAX_OPERANDS


class FreeWorkspaces:
    """Addresses of the free workspaces, in any slots; the other slots hold 0. The word before a
    workspace holds its size in bytes."""

    SLOTS = 64


class TeamState:
    """What the tasks of a team tell each other. Slots that are written separately are on cache
    lines of their own.

    `DONE`: parts of all phases that are done.
    `LEFT`: tasks that have ended.
    """

    CLAIM_SLOTS = 8
    DONE, SLEEPERS, LEFT = range(3)
    CLAIMS = 8
    """For each part, the number of phases in which it was taken."""
    SIZE = CLAIMS + CLAIM_SLOTS * MAX_TEAM


class Plan:
    """The header of a plan. Strides are in bytes.

    `BATCH_AXES`: address of `BATCH_RANK` records of four slots: extent, stride in A, in B, in C.
    `SHARED_PACK`: 1 if workers pack B together and then wait at a barrier; 0 if each packs what it
    reads.
    `PARTS`: parts of k in split-k; several need the reduction of partial products.
    `REDUCE`: address of the function that reduces partial products.
    `A_STRIDE`: the run-time stride of A's layout, for uKernels that read A in place.
    `CHUNKS`: number of chunks that the first worker record is cut into, for work stealing; 0 if
    each worker has its own record.
    `CHUNK_BY_PANELS`: 1 if chunks are ranges of panels, 0 if they are ranges of batch elements.
    `CHUNK_EXTENT`: panels or batch elements that the chunks divide.
    `PRIVATE_STRIDE`: bytes between the private workspaces of workers that share a record.
    `NEXT_ELEMENT`: 1 if the tiles of a batch element prefetch A and B of the next one, both
    contiguous.
    `ROWS`: rows of A; of a plan for a range of rows, those that it was made for.
    `FINISH`: what the last block of k applies: its own epilogue, or a function; see `Context`.
    """

    WORKERS, BATCH_RANK, BATCH_AXES, A_ROW_STRIDE, A_K_STRIDE, B_K_STRIDE = range(6)
    B_COLUMN_STRIDE, C_ROW_STRIDE, K, ACCUMULATE, SHARED_PACK, SHARED_PACK_OFFSET = range(6, 12)
    PARTS, PARTIAL_OFFSET, PARTIAL_BYTES, N, REDUCE, A_STRIDE, CHUNKS = range(12, 19)
    CHUNK_BY_PANELS, CHUNK_EXTENT, PRIVATE_STRIDE, NEXT_ELEMENT, ROWS, C_ITEMSIZE = range(19, 25)
    FINISH, OPERAND_STRIDES = range(25, 27)
    WORKER_RECORDS = OPERAND_STRIDES + MAX_OPERANDS


class Worker:
    """One worker's share of a plan.

    `PRIVATE_OFFSET`: offset in the workspace of this worker's own packed B and A.
    """

    BATCH_BEGIN, BATCH_END, PACKS, PACK_COUNT, BANDS, BAND_COUNT, PRIVATE_OFFSET = range(7)
    A_BLOCK_OFFSET, SIZE = range(7, 9)


class Pack:
    """Panels of B to pack, all of one width.

    `WIDTH`: columns of B in a panel.
    `PADDED`: columns of a panel as stored, padded with zeros.
    `OFFSET`: offset in the packed B of the first of these panels.
    `FIRST_PANEL`: number of the first panel, counted over all panels that the chunks divide.
    """

    COLUMN, PANELS, WIDTH, PADDED, OFFSET, FIRST_PANEL, SIZE = range(7)


class Band:
    """Columns `COLUMN ..` in `PANELS` panels, crossed with row segments.

    `VALID_COLUMNS`: columns of each panel that are stored; fewer than the width only in tails.
    `B_IN_WORKSPACE`: 1 if B is read from panels packed in the workspace, 0 if from the operand B,
    which may be a packed weight. `B_OFFSET` counts from the start of either.
    `BLOCK_TILES`: row tiles of the first segment in one cache block (`mc / mr`).
    `PARTIAL`: -1 to write C; s >= 0 to write the s-th partial product.
    `FIRST_PANEL`: as in `Pack`.
    `OTHER_TILES`: row tiles of all segments but the first.
    `B_ITEMSIZE`: bytes of an element of B as stored, before it is widened.
    `WIDENS`: the address of the function that widens panels once, before their uKernels, to where
    packed panels would be; 0 if none does.
    `K_STREAMS`, `AHEAD`: as in `Context`.
    `COVERS`: of a plan for a range of rows: the address of the `AllCovers` that has the segments; 0
    of others. `ROW_PART`, `ROW_PARTS` and `ROW_TILE` then say which rows a worker has, as
    `split_rows` does, and `BLOCK_TILES` is the number of rows in one cache block.
    `IN_PARTS_FROM`: height of the lowest row tile that is in parts; `ALL_ROWS` if none is.
    """

    COLUMN, PANELS, PANEL_WIDTH, VALID_COLUMNS, B_IN_WORKSPACE, B_OFFSET, B_PANEL_STRIDE = range(7)
    B_K_STRIDE, ROW, K_BEGIN, K_END, KC, BLOCK_TILES, PACK_A, PARTIAL, FIRST_PANEL = range(7, 16)
    OTHER_TILES, B_ITEMSIZE, WIDENS, K_STREAMS, AHEAD, COVERS, ROW_PART, ROW_PARTS = range(16, 24)
    ROW_TILE, IN_PARTS_FROM, SEGMENTS, FIRST_SEGMENT = range(24, 28)
    SIZE = FIRST_SEGMENT + 3 * MAX_SEGMENTS


class Segment:
    """Row tiles of one height, of one uKernel."""

    KERNEL, MR, TILES, SIZE = range(4)


class Program:
    """The header of a program: a table of steps that all workers walk.

    `STEPS`: address of the step records.
    `PATCHES`: address of the patch records.
    """

    WORKERS, STEPS, STEP_COUNT, PATCHES, PATCH_COUNT, POOL, SIZE = range(7)


class Step:
    """One step of a program.

    `KIND`: 0 of a kernel that computes tasks; otherwise the number of a product's dtype in
    `PRODUCT_KINDS`.
    `FUNCTION`: address of the kernel.
    `ARGUMENT`: address of a kernel's buffer addresses, or of a product's `Call`.
    `DIMS`: address of the dims that a kernel reads.
    `TASKS`: number of tasks of a kernel.
    `WORKERS`: workers that take part: all, unless they wait for each other. Before a worker deals
    the chunks of the next step it must have seen that no chunk of this one is left.
    `CHUNKS`: number of chunks, for work stealing; 0 if the step is empty.
    `TOGETHER`: 1 if the workers of a product wait for each other; each then does its own chunk.
    `BEFORE`: number of completed chunks of the program at which the step may begin.
    `STATUS`: a `Status`.
    """

    KIND, FUNCTION, ARGUMENT, DIMS, TASKS, WORKERS, CHUNKS, TOGETHER, BEFORE, STATUS = range(10)
    SIZE = 12
    # Of the products of several requests with one weight, chunk by chunk of its panels in turns:
    CALLS = FUNCTION
    """Address of the addresses of their `Call`s."""
    CALL_COUNT = DIMS
    """Number of these; 0 of any other product."""
    PANELS = TASKS
    """Panels of the weight."""


class Status:
    """The status words of a run, which the checks of its steps write.

    `NUMBER`: 0, or the number of the check that failed.
    `INDEX`: the index that is out of range.
    `EXTENT`: the extent that it is outside of.
    """

    NUMBER, INDEX, EXTENT, SIZE = range(4)


PRODUCT_KINDS = {dtype: number for number, dtype in enumerate(DTYPES.values(), start=1)}
"""`Step.KIND` of a product by dtype."""


class Patch:
    """A slot of a program that holds an address within one of the caller's arrays.

    `SLOT`: address of the slot.
    `ARRAY`: the number of the array.
    `OFFSET`: bytes from the array's first element.
    """

    SLOT, ARRAY, OFFSET, SIZE = range(4)


class Context:
    """Parameters of a uKernel besides its arguments; strides in bytes.

    `A_STRIDE`: between rows of A (row layout) or between k steps (column layout).
    `A_TILE_STRIDE`: between row tiles of A.
    `B_K_STRIDE`: between k steps of B; for dot tiles, between its columns.
    `FINISH`: 0 before the last block of k; on it 1, so that the uKernel applies the epilogue that
    it has, or the address of a `FINISH_TYPE` that applies another one to each tile that was stored.
    `NEXT_B`: address that the first tile prefetches into L2: its part of the next panel, or of B of
    the next batch element.
    `NEXT_B_STEP`: bytes prefetched there for each k step of a tile; 0 if nothing follows.
    `NEXT_A_DISTANCE`: bytes from a tile's A to that of the next batch element; 0 if it is not
    prefetched.
    `ASKS_FOR_B`: number of tiles that prefetch their own B: 1 if no earlier tile prefetched it,
    else 0.
    `K_STREAMS`: binary logarithm of the streams along k of a tile that prefetches its own B.
    `AHEAD`: bytes of B that such a tile has under way, in all streams together.
    `K_BEGIN`: the k step that the uKernel begins with; only those that read A through a window use
    it.
    `OPERANDS`: address and stride of each epilogue operand, two slots each.
    """

    A_STRIDE, A_TILE_STRIDE, B_K_STRIDE, C_ROW_STRIDE, VALID_COLUMNS, ACCUMULATE, FINISH = range(7)
    NEXT_B, NEXT_B_STEP, NEXT_A_DISTANCE, ASKS_FOR_B, K_STREAMS, AHEAD, WINDOW = range(7, 14)
    K_BEGIN, OPERANDS = range(14, 16)
    SIZE = OPERANDS + 2 * MAX_OPERANDS


WINDOW_AXES = 3
"""Spatial axes of a window, slowest first; one of fewer axes has extents of 1 in front."""


class Window:
    """A window that A is read through; `WINDOW_AXES` slots for values of each axis.

    `RUN`: k steps of each element of the window, which are consecutive in memory.
    `ZEROS`: address of `RUN` zeros.
    """

    EXTENTS = 0
    """Of x."""
    OUTPUTS = 3
    """Positions of the window."""
    KERNEL = 6
    """Elements of the window that are apart in memory."""
    STRIDES = 9
    DILATIONS = 12
    BEGIN = 15
    """Padding before the first element of x."""
    AXIS_BYTES = 18
    IMAGE_BYTES, RUN, ZEROS, SIZE = range(21, 25)


class Barrier:
    """A barrier of threads.

    `SLEEPERS`: threads that sleep until `GENERATION` changes.
    """

    ARRIVED = 0
    GENERATION, SLEEPERS = range(16, 18)


class PoolSlot:
    """The thread pool. Slots that different threads write are at least 128 bytes apart.

    `WORKERS`: workers of the job, the caller included.
    `EPOCH`: the last epoch of work stealing so far; those of the job come next.
    `STARTED`: workers that have been started, without the caller.
    `ALONE_FOR`: short cached calls that still run without workers, because one was preempted.
    `GATE`: the gate of the job: its number (32 bits), whether it is closed to late workers (1 bit),
    how many workers have entered (15 bits), how many are still inside (16 bits).
    `GATE_SLEEPERS`: 1 while the caller sleeps until `GATE` changes.
    `COMPLETED`: chunks of the program that are done.
    `MAIL_JOBS`: jobs posted so far.
    `MAIL_SLEEPERS`: 1 while the worker sleeps until `MAIL_JOBS` changes.
    `MAIL_CPU`: the CPU of the worker when it last saw a job.
    `MAIL_MOVED`: 1 if a launch has barred the worker from some CPUs and the worker has not woken
    since.
    `MAIL_THREAD`: the kernel's id of the worker's thread.
    """

    JOB, ARGUMENT, WORKERS, EPOCH, STARTED, ALONE_FOR = range(6)
    GATE, GATE_SLEEPERS = range(16, 18)
    BARRIER = 32
    """The `Barrier` of the workers of one product."""
    COMPLETED, COMPLETED_SLEEPERS = range(64, 66)
    MAILBOXES = 80
    """One for each worker: `MAIL_*`."""
    MAIL_JOBS, MAIL_SLEEPERS, MAIL_CPU, MAIL_MOVED, MAIL_THREAD = range(5)
    MAIL_ALLOWED = 16
    """The worker's CPU affinity before it was barred from some CPUs, `CPU_MASK_WORDS` slots."""
    CPU_MASK_WORDS = 16
    """1024 CPUs, as in the C library's `cpu_set_t`."""
    MAIL_CHUNKS = 32
    """The worker's range of chunks in one word; see `work_stealing`."""
    MAIL_BARRED = 48
    """The CPUs that a launch has left to the worker."""
    MAILBOX_SIZE = 64


class LevelPanel:
    """The layout of a weight of 8-bit levels: panels, in which each group of k steps has the
    columns one after the other, each with its steps. What is missing is zero."""

    VECTORS = 4
    """Vectors of a panel; a lane has the steps of a column."""
    STEPS = 4
    """k steps of a group."""


class AllCovers:
    """The covers of any number of rows by the panels of one width.

    `LIMIT`: rows that covers are listed for. More rows begin with main tiles, at least one, so that
    no more than these are left.
    `MAIN`: rows of a main tile.
    `TABLES`: the covers of 0, 1, ... `LIMIT` rows, and then those of as many rows that follow main
    tiles, whose first segment is one of main tiles, too: each `MAX_SEGMENTS` segments, unused ones
    without tiles.
    """

    LIMIT, MAIN, TABLES = range(3)
