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
    """The addresses of one call."""

    PLAN = 0
    A = 1
    B = 2
    C = 3
    WORKSPACE = 4
    POOL = 5
    WINDOW = 6
    """Address of the `Window` that A is read through; any value if it is read otherwise."""
    ROWS = 7
    """Rows of A. A plan for a range of rows does not know them."""
    OPERANDS = 8
    SIZE = OPERANDS + MAX_OPERANDS


class FreeWorkspaces:
    """Addresses of the free workspaces, in any slots; the other slots hold 0. The word before a
    workspace holds its size in bytes."""

    SLOTS = 64


class TeamState:
    """What the tasks of a team tell each other. Slots that are written separately are on cache
    lines of their own."""

    CLAIM_SLOTS = 8
    DONE = 0
    """Parts of all phases that are done."""
    SLEEPERS = 1
    LEFT = 2
    """Tasks that have ended."""
    CLAIMS = 8
    """For each part, the number of phases in which it was taken."""
    SIZE = CLAIMS + CLAIM_SLOTS * MAX_TEAM


class Plan:
    """The header of a plan. Strides are in bytes."""

    WORKERS = 0
    BATCH_RANK = 1
    BATCH_AXES = 2
    """Address of `BATCH_RANK` records of four slots: extent, stride in A, in B, in C."""
    A_ROW_STRIDE = 3
    A_K_STRIDE = 4
    B_K_STRIDE = 5
    B_COLUMN_STRIDE = 6
    C_ROW_STRIDE = 7
    K = 8
    ACCUMULATE = 9
    SHARED_PACK = 10
    """1 if workers pack B together and then wait at a barrier; 0 if each packs what it reads."""
    SHARED_PACK_OFFSET = 11
    PARTS = 12
    """Parts of k in split-k; several need the reduction of partial products."""
    PARTIAL_OFFSET = 13
    PARTIAL_BYTES = 14
    N = 15
    REDUCE = 16
    """Address of the function that reduces partial products."""
    A_STRIDE = 17
    """The run-time stride of A's layout, for uKernels that read A in place."""
    CHUNKS = 18
    """Number of chunks that the first worker record is cut into, for work stealing; 0 if each
    worker has its own record."""
    CHUNK_BY_PANELS = 19
    """1 if chunks are ranges of panels, 0 if they are ranges of batch elements."""
    CHUNK_EXTENT = 20
    """Panels or batch elements that the chunks divide."""
    PRIVATE_STRIDE = 21
    """Bytes between the private workspaces of workers that share a record."""
    NEXT_ELEMENT = 22
    """1 if the tiles of a batch element prefetch A and B of the next one, both contiguous."""
    ROWS = 23
    """Rows of A; of a plan for a range of rows, those that it was made for."""
    C_ITEMSIZE = 24
    FINISH = 25
    """What the last block of k applies: its own epilogue, or a function; see `Context`."""
    OPERAND_STRIDES = 26
    WORKER_RECORDS = OPERAND_STRIDES + MAX_OPERANDS


class Worker:
    """One worker's share of a plan."""

    BATCH_BEGIN = 0
    BATCH_END = 1
    PACKS = 2
    PACK_COUNT = 3
    BANDS = 4
    BAND_COUNT = 5
    PRIVATE_OFFSET = 6
    """Offset in the workspace of this worker's own packed B and A."""
    A_BLOCK_OFFSET = 7
    SIZE = 8


class Pack:
    """Panels of B to pack, all of one width."""

    COLUMN = 0
    PANELS = 1
    WIDTH = 2
    """Columns of B in a panel."""
    PADDED = 3
    """Columns of a panel as stored, padded with zeros."""
    OFFSET = 4
    """Offset in the packed B of the first of these panels."""
    FIRST_PANEL = 5
    """Number of the first panel, counted over all panels that the chunks divide."""
    SIZE = 6


class Band:
    """Columns `COLUMN ..` in `PANELS` panels, crossed with row segments."""

    COLUMN = 0
    PANELS = 1
    PANEL_WIDTH = 2
    VALID_COLUMNS = 3
    """Columns of each panel that are stored; fewer than the width only in tails."""
    B_IN_WORKSPACE = 4
    """1: B is read from panels packed in the workspace; 0: from the operand B, which may be a
    packed weight. `B_OFFSET` counts from the start of either."""
    B_OFFSET = 5
    B_PANEL_STRIDE = 6
    B_K_STRIDE = 7
    ROW = 8
    K_BEGIN = 9
    K_END = 10
    KC = 11
    BLOCK_TILES = 12
    """Row tiles of the first segment in one cache block (`mc / mr`)."""
    PACK_A = 13
    PARTIAL = 14
    """-1: write C; s >= 0: write the s-th partial product."""
    FIRST_PANEL = 15
    """As `Pack.FIRST_PANEL`."""
    OTHER_TILES = 16
    """Row tiles of all segments but the first."""
    B_ITEMSIZE = 17
    """Bytes of an element of B as stored, before it is widened."""
    WIDENS = 18
    """The address of the function that widens panels once, before their uKernels, to where packed
    panels would be; 0 if none does."""
    K_STREAMS = 19
    """As `Context.K_STREAMS`, and the next slot as `Context.AHEAD`."""
    AHEAD = 20
    COVERS = 21
    """Of a plan for a range of rows: the address of the `AllCovers` that has the segments; 0 of
    others. The next three slots say which rows a worker has, as `split_rows` does, and
    `BLOCK_TILES` is the number of rows in one cache block."""
    ROW_PART = 22
    ROW_PARTS = 23
    ROW_TILE = 24
    IN_PARTS_FROM = 25
    """Height of the lowest row tile that is in parts; `ALL_ROWS` if none is."""
    SEGMENTS = 26
    FIRST_SEGMENT = 27
    SIZE = FIRST_SEGMENT + 3 * MAX_SEGMENTS


class Segment:
    """Row tiles of one height, of one uKernel."""

    KERNEL = 0
    MR = 1
    TILES = 2
    SIZE = 3


class Program:
    """The header of a program: a table of steps that all workers walk."""

    WORKERS = 0
    STEPS = 1
    """Address of the step records."""
    STEP_COUNT = 2
    PATCHES = 3
    """Address of the patch records."""
    PATCH_COUNT = 4
    POOL = 5
    SIZE = 6


class Step:
    """One step of a program."""

    KIND = 0
    """0: a kernel that computes tasks; otherwise a product of the dtype with this number in
    `PRODUCT_KINDS`."""
    FUNCTION = 1
    """Address of the kernel."""
    ARGUMENT = 2
    """Address of a kernel's buffer addresses, or of a product's `Call`."""
    DIMS = 3
    """Address of the dims that a kernel reads."""
    TASKS = 4
    """Number of tasks of a kernel."""
    WORKERS = 5
    """Workers that take part: all, unless they wait for each other. Before a worker deals the
    chunks of the next step it must have seen that no chunk of this one is left."""
    CHUNKS = 6
    """Number of chunks, for work stealing; 0 if the step is empty."""
    TOGETHER = 7
    """1 if the workers of a product wait for each other; each then does its own chunk."""
    BEFORE = 8
    """Number of completed chunks of the program at which the step may begin."""
    STATUS = 9
    """A `Status`."""
    SIZE = 12
    # Of the products of several requests with one weight, chunk by chunk of its panels in turns:
    CALLS = FUNCTION
    """Address of the addresses of their `Call`s."""
    CALL_COUNT = DIMS
    """Number of these; 0 of any other product."""
    PANELS = TASKS
    """Panels of the weight."""


class Status:
    """What the checks of a step found."""

    NUMBER = 0
    """0, or the number of the check that failed."""
    INDEX = 1
    """The index that is out of range."""
    EXTENT = 2
    """The extent that it is outside of."""
    SIZE = 3


PRODUCT_KINDS = {dtype: number for number, dtype in enumerate(DTYPES.values(), start=1)}
"""`Step.KIND` of a product by dtype."""


class Patch:
    """A slot of a program that holds an address within one of the caller's arrays."""

    SLOT = 0
    """Address of the slot."""
    ARRAY = 1
    """The number of the array."""
    OFFSET = 2
    """Bytes from the array's first element."""
    SIZE = 3


class Context:
    """Parameters of a uKernel besides its arguments; strides in bytes."""

    A_STRIDE = 0
    """Between rows of A (row layout) or between k steps (column layout)."""
    A_TILE_STRIDE = 1
    """Between row tiles of A."""
    B_K_STRIDE = 2
    """Between k steps of B; for dot tiles, between its columns."""
    C_ROW_STRIDE = 3
    VALID_COLUMNS = 4
    ACCUMULATE = 5
    FINISH = 6
    """0 before the last block of k. On it 1, so that the uKernel applies the epilogue that it has,
    or the address of a `FINISH_TYPE` that applies another one to each tile that was stored."""
    NEXT_B = 7
    """Address that the first tile prefetches into L2: its part of the next panel, or of B of the
    next batch element."""
    NEXT_B_STEP = 8
    """Bytes prefetched there for each k step of a tile; 0 if nothing follows."""
    NEXT_A_DISTANCE = 9
    """Bytes from a tile's A to that of the next batch element; 0 if it is not prefetched."""
    ASKS_FOR_B = 10
    """Number of tiles that prefetch their own B: 1 if no earlier tile prefetched it, else 0."""
    K_STREAMS = 11
    """Binary logarithm of the streams along k of a tile that prefetches its own B."""
    AHEAD = 12
    """Bytes of B that such a tile has under way, in all streams together."""
    WINDOW = 13
    K_BEGIN = 14
    """The k step that the uKernel begins with; only those that read A through a window use it."""
    OPERANDS = 15
    """Address and stride of each epilogue operand, two slots each."""
    SIZE = OPERANDS + 2 * MAX_OPERANDS


WINDOW_AXES = 3
"""Spatial axes of a window, slowest first; one of fewer axes has extents of 1 in front."""


class Window:
    """A window that A is read through; `WINDOW_AXES` slots for values of each axis."""

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
    IMAGE_BYTES = 21
    RUN = 22
    """k steps of each element of the window, which are consecutive in memory."""
    ZEROS = 23
    """Address of `RUN` zeros."""
    SIZE = 24


class Barrier:
    """A barrier of threads."""

    ARRIVED = 0
    GENERATION = 16
    SLEEPERS = 17
    """Threads that sleep until `GENERATION` changes."""


class PoolSlot:
    """The thread pool. Slots that different threads write are at least 128 bytes apart."""

    JOB = 0
    ARGUMENT = 1
    WORKERS = 2
    """Workers of the job, the caller included."""
    EPOCH = 3
    """The last epoch of work stealing so far; those of the job come next."""
    STARTED = 4
    """Workers that have been started, without the caller."""
    ALONE_FOR = 5
    """Short cached calls that still run without workers, because one was preempted."""
    GATE = 16
    """The gate of the job: its number (32 bits), whether it is closed to late workers (1 bit), how
    many workers have entered (15 bits), how many are still inside (16 bits)."""
    GATE_SLEEPERS = 17
    """1 while the caller sleeps until `GATE` changes."""
    BARRIER = 32
    """The `Barrier` of the workers of one product."""
    COMPLETED = 64
    """Chunks of the program that are done."""
    COMPLETED_SLEEPERS = 65
    MAILBOXES = 80
    """One for each worker: `MAIL_*`."""
    MAIL_JOBS = 0
    """Jobs posted so far."""
    MAIL_SLEEPERS = 1
    """1 while the worker sleeps until `MAIL_JOBS` changes."""
    MAIL_CPU = 2
    """The CPU of the worker when it last saw a job."""
    MAIL_MOVED = 3
    """1 if a launch has barred the worker from some CPUs and the worker has not woken since."""
    MAIL_THREAD = 4
    """The kernel's id of the worker's thread."""
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
    """The covers of any number of rows by the panels of one width."""

    LIMIT = 0
    """Rows that covers are listed for. More rows begin with main tiles, at least one, so that no
    more than these are left."""
    MAIN = 1
    """Rows of a main tile."""
    TABLES = 2
    """The covers of 0, 1, ... `LIMIT` rows, and then those of as many rows that follow main tiles,
    whose first segment is one of main tiles, too: each `MAX_SEGMENTS` segments, unused ones without
    tiles."""
