"""Layouts of the records that binding writes for native code, once for a graph, a shape or a batch,
and of the records of call caches and of tables of words."""

from __future__ import annotations

OPERATIONS = (
    "sum", "product", "quotient", "remainder", "maximum", "minimum", "broadcast", "whole", "scaled",
    "bounded", "equal", "equal_or_one", "fine_start", "middle", "coarse_middle",
)  # fmt: skip
"""What an `Instruction` computes of x and y: the operations of dims (`core.evaluation`); what fails
unless x is one of 0 to y, equals y, or equals y or one of them is 1; and what stands for the range
of x (`core.ranges`)."""


class Instruction:
    """An operation of dims. Operands and result are words of one array, given by number."""

    OPERATION = 0
    """Its number in `OPERATIONS`."""
    TARGET = 1
    X = 2
    Y = 3
    SIZE = 4


class Deciding:
    """The decisions of a graph, which are looked up for each shape. Areas are words of the array of
    a shape, given by the number of the first one."""

    DIMS = 0
    """The address of the instructions of all dims and then of what must hold. Their number
    follows."""
    DIM_COUNT = 1
    ROUNDED = 2
    """The address of the instructions of what stands for ranges. Their number follows."""
    ROUNDED_COUNT = 3
    COARSE = 4
    """The area in which the instructions of dims find the symbols in the middles of their coarse
    ranges; 0 if nothing is decided by them. It has the layout of what is before it."""
    COARSE_COUNT = 5
    """The instructions of dims alone."""
    DECISIONS = 6
    """The address of a `Decision` for each condition and each group. Their number follows."""
    COUNT = 7
    NUMBERS = 8
    """The address of the numbers of the words of all keys."""
    WORKERS = 9
    """The word that holds the number of workers."""
    FOUND = 10
    """The area of a `Found` for each decision."""
    OWNERS = 11
    """The area of `Entry.OWNER` of each decision."""
    SUMMARY = 12
    """The area of a `Summary`."""
    SIZE = 13


class Decision:
    """How one decision is looked up, and where its words are copied to."""

    FORM = 0
    """The first word of its key."""
    CONDITION = 1
    """The number of the decision that says whether the tasks have nothing to do; -1 if none
    does."""
    FIRST = 2
    """The first of the numbers of its key's words, which are `LENGTH`."""
    LENGTH = 3
    KEY = 4
    """The area of its key."""
    SHARES = 5
    """The area of the rows of its tasks in `Sharing.SHARES`."""
    SHARE_WORDS = 6
    VALUES = 7
    """The area of the values of its tasks."""
    VALUE_WORDS = 8
    VARIANTS = 9
    """The area of the variants of its tasks."""
    VARIANT_WORDS = 10
    SIZE = 11


class Found:
    """The result of looking up one decision."""

    ENTRY = 0
    """The address of the `Entry`; 0 if there is none."""
    DIGEST = 1
    LENGTH = 2
    """The words of the key."""
    SIZE = 3


class Summary:
    """Bytes that all decisions of a shape take together."""

    WORKSPACE_BYTES = 0
    """The largest workspace."""
    WORKER_BYTES = 1
    """The largest workspace of one worker."""
    KEPT_BYTES = 2
    """The sum of what the decisions keep."""
    SIZE = 3


class Entry:
    """A decision in a hash table: an array of addresses, after the number of the last place. Places
    after that of the digest are looked at until one is 0."""

    DIGEST = 0
    LENGTH = 1
    """The words of the key."""
    OWNER = 2
    """The number of what keeps its plans."""
    USES = 3
    """How many look-ups have found it."""
    HOLDS = 4
    """Of a condition, whether it holds."""
    SUMMARY = 5
    """A `Summary`."""
    KEY = SUMMARY + Summary.SIZE
    """The key: the form, whether the condition holds and the number of workers, and values of dims.
    Shares, variants and values of the tasks follow."""


class Sharing:
    """The steps and buffers of a graph: addresses of arrays, with an element for each step, each
    buffer of the arena, and each pair of a buffer that no step may write and a step that may; and
    areas as of `Deciding`."""

    STEPS = 0
    ROWS = 1
    """Of each step the row of its task among `SHARES`; 0 if a dim counts its tasks."""
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
    WORKERS = 12
    """The word that holds the number of workers."""
    SHARES = 13
    """The area of rows of workers, chunks, and whether the workers wait for each other; the first
    one is of nothing."""
    SHARED = 14
    """Written: for all steps the workers, then the chunks, whether workers wait for each other, and
    the chunks before the step's stage."""
    SIZES = 15
    """Written: the bytes of each buffer."""
    LIVING = 16
    """The area of a `Living` for each buffer."""
    FIRST_SOURCE = 17
    """The number of the source that is the first buffer."""
    IMAGE = 18
    """The address of the image of the records. The number of its words follows."""
    IMAGE_WORDS = 19
    SIZE = 20


class Later:
    """Results that later runs find computed: addresses of arrays."""

    IDLE = 0
    """Of each step, whether it is then idle."""
    ELSEWHERE = 1
    """Of each buffer, whether it is not in the arena."""
    SHARED = 2
    """Written: as `Sharing.SHARED`, of later runs."""
    SIZE = 3


class Living:
    """A buffer of an arena that is placed and still read."""

    BEGIN = 0
    END = 1
    LAST = 2
    """The last stage that reads it."""
    SIZE = 3


class Copies:
    """Copies of bound programs of one layout, each with an arena and arrays of its own."""

    COUNT = 0
    TARGET = 1
    """The address of the records of the first copy, which those of the others follow."""
    ROWS = 2
    """The address of a `Copy` for each."""
    ROW_WORDS = 3
    """Words of a `Copy`."""
    WORDS = 4
    """Words of the records of a program."""
    STAGES = 5
    """The address of the first step of the stage of each step."""
    POINTERS = 6
    """Number of slots that hold an address in the records. The address of their numbers follows."""
    POINTER_SLOTS = 7
    PLACES = 8
    """Number of slots that hold an address in the arena. The addresses of their numbers, and of
    those of their sources, follow."""
    PLACE_SLOTS = 9
    PLACE_SOURCES = 10
    PATCHES = 11
    """Number of slots that hold an address in an array of the caller. The addresses of their
    numbers, of those of the arrays, and of the slots with the offsets follow."""
    PATCH_SLOTS = 12
    PATCH_ARRAYS = 13
    PATCH_OFFSETS = 14
    SIZE = 15


class Copy:
    """One copy of a program that was bound to an arena at address 0."""

    RECORDS = 0
    """The address of the records that are copied."""
    SOURCES = 1
    """The address of the addresses of all sources. Those beyond the arena stay as they are."""
    ARENA_BYTES = 2
    ARENA = 3
    """The address of the copy's arena."""
    ARRAYS = 4
    """The addresses of the caller's arrays."""


class Turn:
    """Successive steps of all copies of a layout."""

    LAYOUT = 0
    """The number of its `Copies`."""
    FIRST = 1
    """The number of the first step."""
    STEPS = 2
    SIZE = 3


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
    BUSY = 8
    """1 while a program runs: all of them have one workspace. Calls meanwhile are not known."""
    TABLE = 9
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
    """For each array of a product, the byte offsets of its lowest byte and of the end of its
    highest one, from its first element."""
    LENGTH = SPANS + 2 * 3
    """Words of the signature, which follows. For each array it has the dtype, flags and number of
    axes, extents, strides; it has one 0 for a result that is to be allocated."""
    SIGNATURE = LENGTH + 1
    MAX_AXES = 8
    MAX_INPUTS = 8
    """Most inputs of a program whose calls are cached."""
    HASH_FACTOR = 0x9E3779B97F4A7C15
    """2**64 divided by the golden ratio. A step of the hash is an exclusive or with the next word,
    a product with this, and an exclusive or of the high half into the low half."""


class Tasks:
    """The plan of a call of a schedule."""

    JOB = 0
    POOL = 1
    THREADS = 2
    ARRAYS = 3
    """Number of arrays."""
    ADDRESSES = 4
    """The word of the record at which the addresses of the arrays begin."""
    RECORD = 5
    """The first of the words that the job is given (`tasks.llvm`). Each call sets it, and the
    addresses."""


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


class WordTable:
    """Words that have values; `codegen.llvm.native.words` looks them up."""

    UTF8 = 0
    """The address of `PyUnicode_AsUTF8AndSize`."""
    CLASSES = 1
    """The address of a byte for each byte: whether it is in a word. 0 if each string is a word."""
    LEAST = 2
    MOST = 3
    """Characters of the shortest and of the longest word."""
    MASK = 4
    """One less than the number of entries, a power of two."""
    ENTRIES = 5
    """The address of a `WordEntry` for each word, at the place of its digest or after that."""
    TEXTS = 6
    """The address of the UTF-8 of all words, after which there is a byte."""
    OTHER = 7
    """The value of words without an entry."""
    SIZE = 8
    HASH_BASIS, HASH_FACTOR = 0xCBF29CE484222325, 0x100000001B3
    """The constants of FNV-1a with 64 bits (Fowler, Noll and Vo), which makes the digests."""


class WordEntry:
    """A word of a table, or a free place."""

    DIGEST = 0
    BEGIN = 1
    """Where its UTF-8 begins."""
    BYTES = 2
    """The length of its UTF-8; -1 in a free place."""
    VALUE = 3
    SIZE = 4
