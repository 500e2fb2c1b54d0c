"""Layouts of the records that binding writes for native code, once for a graph, a shape or a batch,
and of the records of call caches and of tables of words."""

from __future__ import annotations


class Sharing:
    """The steps and buffers of a graph: addresses of arrays, with an element for each step, each
    buffer of the arena, and each pair of a buffer that no step may write and a step that may."""

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
    """The extents of a program, and memory for what is decided for them: addresses of arrays."""

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
