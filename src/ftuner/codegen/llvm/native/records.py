"""The records that the runtime writes and native code reads: names of their slots.

A record is an array of 8-byte slots. A *plan* holds a header, one worker record for each worker,
and behind them the pack and band records that the workers' records point to. A plan never changes
after it is written; what changes from call to call (addresses of arrays) is in the *call* record.
"""

from __future__ import annotations

from ftuner.core.cpu.tile import MAX_OPERANDS, MAX_SEGMENTS, UKernel, epilogue_digest
from ftuner.core.dtype import DTYPES, DType

SLOT_BYTES = 8
"""Records are arrays of 8-byte slots."""


class Call:
    """Addresses of one call."""

    PLAN = 0
    A = 1
    B = 2
    C = 3
    WORKSPACE = 4
    POOL = 5
    OPERANDS = 6
    SIZE = OPERANDS + MAX_OPERANDS


class Site:
    """What a native function that Python calls knows: which records there are of calls like some
    before, and some objects of this process."""

    NONE = 0
    TRUE = 1
    FALSE = 2
    ARRAY_TYPE = 3
    THREADS = 4
    """Address of the number of threads that calls may use now."""
    WORKSPACES = 5
    """Address of the `FreeWorkspaces`."""
    MOST_WORKSPACE_BYTES = 6
    """Of a free one that may be taken."""
    MISSES = 7
    """Calls so far without a record."""
    TABLE = 8
    """Addresses of `Known` records: each in one of `PROBES` slots from that of its hash on, or from
    slot 0 again behind the last; no null before it."""
    TABLE_SLOTS = 1024
    PROBES = 8
    SEEN = TABLE + TABLE_SLOTS
    """Hashes of calls without a record, each in one of `PROBES` slots as well."""
    SIZE = SEEN + TABLE_SLOTS


class Known:
    """A call with arrays of one layout. Python objects are held by the one at `OWNER`."""

    HASH = 0
    THREADS = 1
    """Threads that the plan was made for."""
    ENTRY = 2
    PLAN = 3
    WORKERS = 4
    """Of the plan. If they are taken, the caller does it alone."""
    POOL = 5
    WORKSPACE_BYTES = 6
    """0 if the plan needs none."""
    LAST_USE = 7
    """`Site.MISSES` at that time."""
    B = 8
    """Address of the word that holds the address of B; 0 if it is the second array."""
    OPERANDS = 9
    OWNER = 10
    EMPTY = 11
    """What makes the result if there is no array to write to, and with which arguments."""
    EMPTY_ARGUMENTS = 12
    ACQUIRE = 13
    """Takes the pool, with these arguments: without waiting."""
    ACQUIRE_ARGUMENTS = 14
    RELEASE = 15
    PATIENCE_NS = 16
    """What takes longer had a worker who lost its CPU; 0 for plans that are longer than that."""
    SPANS = 17
    """For each array, from its first element to its lowest byte and to behind its highest one."""
    LENGTH = SPANS + 2 * 3
    """Words of the signature, which comes behind: for each array its dtype, the flags in question
    and how many axes it has, its extents, its strides; 0 for one that is to be made."""
    SIGNATURE = LENGTH + 1
    MAX_AXES = 8
    HASH_FACTOR = 0x9E3779B97F4A7C15
    """From a hash and the next word to the next hash: exclusive or, times this, and exclusive or of
    the high half to the low one. 2**64 divided by the golden ratio."""


class FreeWorkspaces:
    """Addresses of workspaces that no call uses, in any slots; the others hold 0. The word before a
    workspace holds its bytes."""

    SLOTS = 64


class ArrayField:
    """Bytes from where a NumPy array has the address of its elements to what else it tells of them:
    NumPy's binary interface, `PyArrayObject_fields`."""

    TYPE = -8
    DATA = 0
    AXES = 8
    EXTENTS = 16
    STRIDES = 24
    DTYPE = 40
    FLAGS = 48
    ALIGNED = 0x100
    WRITEABLE = 0x400


class Plan:
    """What all workers of one plan share. Strides are in bytes."""

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
    """1 if workers pack B together and wait for each other; 0 if each packs what it needs."""
    SHARED_PACK_OFFSET = 11
    PARTS = 12
    """Parts that k is cut into; more than one needs the reduction of partial products."""
    PARTIAL_OFFSET = 13
    PARTIAL_BYTES = 14
    N = 15
    REDUCE = 16
    """Address of the function that reduces partial products."""
    A_STRIDE = 17
    """The stride of A that its layout leaves to run time, for uKernels that read A in place."""
    CHUNKS = 18
    """0: each worker has a record of its own. Otherwise all work is in the first record, cut into
    so many chunks; each worker begins with an even range of them."""
    CHUNK_BY_PANELS = 19
    """1 if chunks are ranges of panels, 0 if they are ranges of batch elements."""
    CHUNK_EXTENT = 20
    """Panels or batch elements to be cut."""
    PRIVATE_STRIDE = 21
    """Bytes between the private workspaces of workers that share a record."""
    NEXT_ELEMENT = 22
    """1 if the tiles of a batch element fetch A and B of the next one, which lie in one piece."""
    OPERAND_STRIDES = 23
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
    """Where in the workspace this worker's own packed B and A begin."""
    A_BLOCK_OFFSET = 7
    REDUCE_BEGIN = 8
    REDUCE_END = 9
    SIZE = 10


class Pack:
    """Panels of B to pack, all of one width."""

    COLUMN = 0
    PANELS = 1
    WIDTH = 2
    """Columns of a panel that exist."""
    PADDED = 3
    """Columns of a panel as stored, zeros behind the last that exists."""
    OFFSET = 4
    """Bytes from the beginning of the packed B to the first of these panels that is packed."""
    FIRST_PANEL = 5
    """The number of the first panel among those that chunks are cut from."""
    SIZE = 6


class Band:
    """Columns `COLUMN ..` in `PANELS` panels, crossed with row segments."""

    COLUMN = 0
    PANELS = 1
    PANEL_WIDTH = 2
    VALID_COLUMNS = 3
    """Columns of each panel that are stored; equals the width except in tails."""
    B_IN_WORKSPACE = 4
    """1: B is read from the panels packed in the workspace; 0: from the B that was given, which
    may be packed already. `B_OFFSET` counts from there."""
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
    """The number of the first panel among those that chunks are cut from."""
    OTHER_TILES = 16
    """Row tiles of all segments but the first."""
    B_ITEMSIZE = 17
    """Bytes of an element of B; of panels that are widened, before they are."""
    WIDENS = 18
    """1: each panel of 8-bit integers is widened before its uKernels, to where packed panels of B
    begin otherwise."""
    SEGMENTS = 19
    FIRST_SEGMENT = 20
    SIZE = FIRST_SEGMENT + 3 * MAX_SEGMENTS


class Segment:
    """Row tiles of one height, of one uKernel."""

    KERNEL = 0
    MR = 1
    TILES = 2
    SIZE = 3


class Program:
    """A table of steps that all workers walk together."""

    WORKERS = 0
    STEPS = 1
    """Address of the step records."""
    STEP_COUNT = 2
    PATCHES = 3
    """Address of the patch records: what depends on the caller's arrays."""
    PATCH_COUNT = 4
    POOL = 5
    SIZE = 6


class Step:
    """One step of a program."""

    KIND = 0
    """0: a nest; otherwise a product, of the dtype with this number in `PRODUCT_KINDS`."""
    FUNCTION = 1
    ARGUMENT = 2
    """Of a nest, the addresses of its buffers; of a product, its `Call`."""
    DIMS = 3
    TASKS = 4
    """Of a nest."""
    WORKERS = 5
    """Workers that take part: all of them, unless they wait for each other. Who goes on to another
    step deals that one's chunks, and has to have seen that none of this one's are left."""
    CHUNKS = 6
    """Pieces of the step, each done by whoever takes it first. 0 if there is nothing to do."""
    TOGETHER = 7
    """1 if the workers of a product wait for each other in it: each of them then does its own
    chunk."""
    BEFORE = 8
    """Chunks of the program that have to be done before the step begins."""
    STATUS = 9
    """0, or the number of a check of the step that has failed."""
    SIZE = 10


class Patch:
    """An address that depends on an array of the caller."""

    SLOT = 0
    """Where to write it."""
    ARRAY = 1
    """The number of the array."""
    OFFSET = 2
    """Bytes from the array's first element."""
    SIZE = 3


class Attention:
    """What the attention kernel reads besides addresses; strides in bytes. Behind the last slot are
    the batch axes: for each its extent and its strides in q, k, v, the mask and the result."""

    ROWS = 0
    """Rows of q in one batch element."""
    DEPTH = 1
    STEPS = 2
    """Columns of the scores, rows of v: the keys that some row sees."""
    COLUMNS = 3
    """Columns of v and of the result."""
    SCALE = 4
    """The bits of a float64, as in the next two."""
    HIDDEN = 5
    """What stands for scores that a boolean mask hides."""
    FLOOR = 6
    """What the largest score of a row counts as at least."""
    CAUSAL = 7
    """Row i of a causal attention sees keys j <= i + CAUSAL."""
    Q_ROW = 8
    K_DEPTH = 9
    K_STEP = 10
    V_STEP = 11
    V_COLUMN = 12
    MASK_ROW = 13
    OUT_ROW = 14
    SPLITS = 15
    """Tasks for each batch element: ranges of blocks."""
    BLOCK = 16
    """Rows whose scores are held at a time."""
    SCORE_ROW = 17
    """Bytes between rows of scores."""
    PACK = 18
    """Address of the packing function."""
    WORKSPACE = 19
    WORKER_BYTES = 20
    """Of the workspace, for each worker: packed k at its beginning, and then:"""
    V_OFFSET = 21
    SCORES_OFFSET = 22
    SUMS_OFFSET = 23
    STEP_PADDED = 24
    """Columns of the last panel of k as packed, if it is not full."""
    COLUMN_PADDED = 25
    PANEL = 26
    """Columns of a full panel."""
    COVERS = 27
    """Row tiles of a block: for full panels, the last one of k, the last one of v; then the same
    for the last block. Each `MAX_SEGMENTS` segments, unused ones without tiles."""
    AXES = COVERS + 6 * 3 * MAX_SEGMENTS
    AXIS_SIZE = 6


class Context:
    """What a uKernel reads besides its arguments; strides in bytes."""

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
    """Address of what the first tile fetches into L2 for later: its part of the next panel, or of B
    of the next batch element."""
    NEXT_B_STEP = 8
    """Bytes of it fetched for each k step of a tile; 0 where nothing follows."""
    NEXT_A_DISTANCE = 9
    """Bytes from a tile's A to that of the next batch element; 0 where it is not fetched."""
    ASKS_FOR_B = 10
    """How many of the tiles ask for their own B ahead: 1 where nothing fetched it, otherwise 0."""
    OPERANDS = 11
    """Address and stride of each epilogue operand, two slots each."""
    SIZE = OPERANDS + 2 * MAX_OPERANDS


class Barrier:
    """Where threads wait for each other."""

    ARRIVED = 0
    GENERATION = 16
    SLEEPERS = 17
    """Threads that sleep until `GENERATION` changes."""


class PoolSlot:
    """The thread pool's memory. Things written by different threads are 128 bytes apart."""

    JOB = 0
    ARGUMENT = 1
    WORKERS = 2
    """Workers of the job, the caller included."""
    TAG = 3
    """The greatest tag of chunks so far: those of the job come next."""
    STARTED = 4
    """Workers there are, the caller not included."""
    ALONE_FOR = 5
    """So many known calls of short plans do without workers, one of whom has been held up."""
    GATE = 16
    """Who takes part in the job: its number in the high half, then whether it is closed to those
    who come late (1 bit), how many have come (15 bits), how many are still there (16 bits)."""
    GATE_SLEEPERS = 17
    """1 while the caller sleeps until `GATE` changes."""
    BARRIER = 32
    """Where workers of one product wait for each other: a `Barrier`."""
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
    """Where the worker was when it last saw a job."""
    MAIL_MOVED = 3
    """1 if a launch has barred the worker from some CPUs and it has not woken since."""
    MAIL_THREAD = 4
    """The worker's thread, as the kernel numbers it."""
    MAIL_ALLOWED = 16
    """The set of CPUs that the worker could run on before it was barred from some, `CPU_MASK_WORDS`
    slots."""
    CPU_MASK_WORDS = 16
    """1024 CPUs, as in the C library's `cpu_set_t`."""
    MAIL_CHUNKS = 32
    """The worker's range of chunks, in one word: see `chunks`."""
    MAIL_BARRED = 48
    """Those that were left."""
    MAILBOX_SIZE = 64


POOL_WORKER_SYMBOL = "ftuner_pool_worker"
POOL_RUN_SYMBOL = "ftuner_pool_run"
POOL_BARRIER_SYMBOL = "ftuner_pool_barrier"
PROGRAM_SYMBOL = "ftuner_run_program"
TAKE_WORKSPACE_SYMBOL = "ftuner_take_workspace"
GIVE_WORKSPACE_SYMBOL = "ftuner_give_workspace"
PRODUCT_KINDS = {dtype: number for number, dtype in enumerate(DTYPES.values(), start=1)}
"""`Step.KIND` of a product by dtype."""


def call_symbol(dtype: DType) -> str:
    """The entry point of matrix products."""
    return f"ftuner_call_{dtype}"


KNOWN_CALL_INPUTS = (1, 2)
"""Arrays to read of the functions that Python calls: of layers, and of matrix products."""


def known_call_symbol(inputs: int) -> str:
    """The function that Python calls with so many arrays to read."""
    return f"ftuner_known_call_{inputs}"


def job_symbol(dtype: DType) -> str:
    """What every worker of a matrix product runs."""
    return f"ftuner_gemm_{dtype}"


def alone_symbol(dtype: DType) -> str:
    """A matrix product by one thread, however many workers it was planned for."""
    return f"ftuner_alone_{dtype}"


def chunk_symbol(dtype: DType) -> str:
    """A chunk of a matrix product."""
    return f"ftuner_chunk_{dtype}"


def pack_symbol(dtype: DType) -> str:
    return f"ftuner_pack_{dtype}"


def reduce_symbol(like: UKernel) -> str:
    """The reduction of partial products for the dtype, ISA and epilogue of a uKernel."""
    return f"reduce_{like.dtype}_{like.isa}_{epilogue_digest(like.epilogue)}"
