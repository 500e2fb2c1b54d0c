"""Layouts of the records that the runtime writes and native code reads.

A record is an array of 8-byte slots; each class names the slots of one kind. A *plan* is a header,
one record for each worker, and then the pack and band records that the workers' records point to. A
plan is immutable once written. What changes from call to call (addresses of arrays) is in the
*call* record.
"""

from __future__ import annotations

from ftuner.core.cpu.tile import MAX_OPERANDS, MAX_SEGMENTS
from ftuner.core.dtype import DTYPES, NARROW_DTYPES
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


class Site:
    """The call cache of one native function: a hash table of `Known` records, and some objects of
    this process."""

    NONE = 0
    TRUE = 1
    FALSE = 2
    ARRAY_TYPE = 3
    THREADS = 4
    """Address of the number of threads that calls may use."""
    WORKSPACES = 5
    """Address of the `FreeWorkspaces`."""
    MOST_WORKSPACE_BYTES = 6
    """Largest free workspace that a call may take."""
    MISSES = 7
    """Calls so far that were not in the table."""
    TABLE = 8
    """Addresses of `Known` records. Each is in one of the `PROBES` slots that begin at its hash,
    modulo `TABLE_SLOTS`, and no slot before it is null."""
    TABLE_SLOTS = 1024
    PROBES = 8
    SEEN = TABLE + TABLE_SLOTS
    """Hashes of calls that were not in the table, placed as those of the table."""
    SIZE = SEEN + TABLE_SLOTS


class Known:
    """An entry of the call cache: a call with arrays of certain layouts. The Python object at
    `OWNER` keeps the other objects alive."""

    HASH = 0
    THREADS = 1
    """Threads that the plan was made for."""
    ENTRY = 2
    PLAN = 3
    WORKERS = 4
    """Workers of the plan. If another call has them, the caller does the plan alone."""
    POOL = 5
    WORKSPACE_BYTES = 6
    """0 if the plan needs none."""
    LAST_USE = 7
    """`Site.MISSES` when the entry was last used."""
    B = 8
    """Address of the word that holds the address of B; 0 if it is the second array."""
    OPERANDS = 9
    OWNER = 10
    EMPTY = 11
    """The function that allocates the result if no `out` is given; its arguments follow."""
    EMPTY_ARGUMENTS = 12
    ACQUIRE = 13
    """The function that takes the pool's lock without waiting; its arguments follow."""
    ACQUIRE_ARGUMENTS = 14
    RELEASE = 15
    PATIENCE_NS = 16
    """A call that takes longer is assumed to have had a preempted worker; 0 for plans that are
    estimated longer than that."""
    SPANS = 17
    """For each array, the byte offsets of its lowest byte and of the end of its highest one, from
    its first element."""
    LENGTH = SPANS + 2 * 3
    """Words of the signature, which follows. For each array it has the dtype, flags and number of
    axes, extents, strides; it has one 0 for a result that is to be allocated."""
    SIGNATURE = LENGTH + 1
    MAX_AXES = 8
    HASH_FACTOR = 0x9E3779B97F4A7C15
    """2**64 divided by the golden ratio. A step of the hash is an exclusive or with the next word,
    a product with this, and an exclusive or of the high half into the low half."""


class FreeWorkspaces:
    """Addresses of the free workspaces, in any slots; the other slots hold 0. The word before a
    workspace holds its size in bytes."""

    SLOTS = 64


class ArrayField:
    """Fields of a NumPy array, as byte offsets from its data pointer (NumPy's binary interface,
    `PyArrayObject_fields`)."""

    TYPE = -8
    DATA = 0
    AXES = 8
    EXTENTS = 16
    STRIDES = 24
    DTYPE = 40
    FLAGS = 48
    ALIGNED = 0x100
    WRITEABLE = 0x400


WIDENED_KINDS = {dtype: number for number, dtype in enumerate(NARROW_DTYPES, 1)}
"""The dtypes that are widened, by number."""


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
    OPERAND_STRIDES = 24
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
    """The number in `WIDENED_KINDS` of panels that are widened once, before their uKernels, into
    the workspace where packed panels would be; 0 of others."""
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
    SEGMENTS = 25
    FIRST_SEGMENT = 26
    SIZE = FIRST_SEGMENT + 3 * MAX_SEGMENTS


class Segment:
    """Row tiles of one height, of one uKernel."""

    KERNEL = 0
    MR = 1
    TILES = 2
    SIZE = 3


class Sharing:
    """What binding knows of a graph: addresses of arrays, of an element for each step, each buffer
    of the arena, and each pair of a buffer that no step may write and a step that may write it."""

    STEPS = 0
    ROWS = 1
    """Of each step the row of its task among `Extents.SHARES`; 0 if a dim counts its tasks."""
    COUNTS = 2
    """Of each step the number of that dim."""
    STAGES = 3
    """Of each step the first one of its stage."""
    BUFFERS = 4
    ELEMENTS = 5
    """Of each buffer the number of the dim that counts elements."""
    ITEM_BYTES = 6
    LIFETIMES = 7
    """Of each buffer its first and its last stage, in the order of the first ones."""
    ALWAYS = 8
    """Of each buffer 1 if some step writes it in any case."""
    PAIRS = 9
    WRITTEN = 10
    WRITERS = 11
    SIZE = 12


class Extents:
    """What binding decides for extents: addresses of arrays."""

    VALUES = 0
    """Of all dims."""
    WORKERS = 1
    MOST_CHUNKS = 2
    """Of a step whose tasks a dim counts."""
    SHARES = 3
    """Rows of workers, chunks, and whether the workers wait for each other; the first one is of
    nothing."""
    IDLE = 4
    """Of each step, whether later runs find its results; null if there is none."""
    FIRST = 5
    """Written: for all steps the workers, then the chunks, whether workers wait for each other, and
    the chunks before the step's stage."""
    LATER = 6
    """The same of later runs, if there are idle steps."""
    ELSEWHERE = 7
    """The numbers of buffers that are elsewhere."""
    ELSEWHERE_COUNT = 8
    SIZES = 9
    """Written: the bytes of each buffer, as are `OFFSETS`."""
    OFFSETS = 10
    LIVING = 11
    """Memory for a `Living` for each buffer."""
    SIZE = 12


class Living:
    """A buffer of an arena that is placed and still read."""

    BEGIN = 0
    END = 1
    LAST = 2
    """The last stage that reads it."""
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
    """1 on the last block of k: apply the epilogue."""
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
