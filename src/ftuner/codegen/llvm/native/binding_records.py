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
    """An operation of dims. Operands and result are words of one array, given by number.

    `OPERATION`: its number in `OPERATIONS`.
    """

    OPERATION, TARGET, X, Y, SIZE = range(5)


class Deciding:
    """The decisions of a graph, which are looked up for each shape. Areas are words of the array of
    a shape, given by the number of the first one.

    `DIMS`: the address of `DIM_COUNT` instructions, of all dims and then of what must hold.
    `ROUNDED`: the address of `ROUNDED_COUNT` instructions, of what stands for ranges.
    `COARSE`: the area in which the instructions of dims find the symbols in the middles of their
    coarse ranges; 0 if nothing is decided by them. It has the layout of what is before it.
    `COARSE_COUNT`: the instructions of dims alone.
    `DECISIONS`: the address of `COUNT` records `Decision`, for each condition and each group.
    `NUMBERS`: the address of the numbers of the words of all keys.
    `WORKERS`: the word that holds the number of workers.
    `FOUND`: the area of a `Found` for each decision.
    `OWNERS`: the area of `Entry.OWNER` of each decision.
    `SUMMARY`: the area of a `Summary`.
    """

    DIMS, DIM_COUNT, ROUNDED, ROUNDED_COUNT, COARSE, COARSE_COUNT, DECISIONS, COUNT = range(8)
    NUMBERS, WORKERS, FOUND, OWNERS, SUMMARY, SIZE = range(8, 14)


class Decision:
    """How one decision is looked up, and where its words are copied to.

    `FORM`: the first word of its key.
    `CONDITION`: the number of the decision that says whether the tasks have nothing to do; -1 if
    none does.
    `FIRST`: the first of the `LENGTH` numbers of its key's words.
    `KEY`: the area of its key.
    `SHARES`: the area of the rows of its tasks in `Sharing.SHARES`.
    `VALUES`: the area of the values of its tasks.
    `VARIANTS`: the area of the variants of its tasks.
    """

    FORM, CONDITION, FIRST, LENGTH, KEY, SHARES, SHARE_WORDS, VALUES, VALUE_WORDS = range(9)
    VARIANTS, VARIANT_WORDS, SIZE = range(9, 12)


class Found:
    """The result of looking up one decision.

    `ENTRY`: the address of the `Entry`; 0 if there is none.
    `LENGTH`: the words of the key.
    """

    ENTRY, DIGEST, LENGTH, SIZE = range(4)


class Summary:
    """Bytes that all decisions of a shape take together.

    `WORKSPACE_BYTES`: the largest workspace.
    `WORKER_BYTES`: the largest workspace of one worker.
    `KEPT_BYTES`: the sum of what the decisions keep.
    """

    WORKSPACE_BYTES, WORKER_BYTES, KEPT_BYTES, SIZE = range(4)


class Entry:
    """A decision in a hash table: an array of addresses, after the number of the last place. Places
    after that of the digest are looked at until one is 0.

    `LENGTH`: the words of the key.
    `OWNER`: the number of what keeps its plans.
    `USES`: how many look-ups have found it.
    `HOLDS`: of a condition, whether it holds.
    `SUMMARY`: a `Summary`.
    """

    DIGEST, LENGTH, OWNER, USES, HOLDS, SUMMARY = range(6)
    KEY = SUMMARY + Summary.SIZE
    """The key: the form, whether the condition holds and the number of workers, and values of dims.
    Shares, variants and values of the tasks follow."""


class Sharing:
    """The steps and buffers of a graph: addresses of arrays, with an element for each step, each
    buffer of the arena, and each pair of a buffer that no step may write and a step that may; and
    areas as of `Deciding`.

    `ROWS`: of each step the row of its task among `SHARES`; 0 if a dim counts its tasks.
    `COUNTS`: of each step the number of that dim.
    `STAGES`: of each step the first one of its stage.
    `ELEMENTS`: of each buffer the number of the dim that counts elements.
    `LIFETIMES`: of each buffer its first and its last stage, in the order of the first ones.
    `ALWAYS`: of each buffer 1 if some step writes it in any case.
    `WORKERS`: the word that holds the number of workers.
    `SHARES`: the area of rows of workers, chunks, and whether the workers wait for each other; the
    first one is of nothing.
    `SHARED`, written: for all steps the workers, then the chunks, whether workers wait for each
    other, and the chunks before the step's stage.
    `SIZES`, written: the bytes of each buffer.
    `LIVING`: the area of a `Living` for each buffer.
    `FIRST_SOURCE`: the number of the source that is the first buffer.
    `IMAGE`: the address of the image of the records, of `IMAGE_WORDS` words.
    """

    STEPS, ROWS, COUNTS, STAGES, BUFFERS, ELEMENTS, ITEM_BYTES, LIFETIMES, ALWAYS, PAIRS = range(10)
    WRITTEN, WRITERS, WORKERS, SHARES, SHARED, SIZES, LIVING, FIRST_SOURCE, IMAGE = range(10, 19)
    IMAGE_WORDS, SIZE = range(19, 21)


class Later:
    """Results that later runs find computed: addresses of arrays.

    `IDLE`: of each step, whether it is then idle.
    `ELSEWHERE`: of each buffer, whether it is not in the arena.
    `SHARED`, written: as `Sharing.SHARED`, of later runs.
    """

    IDLE, ELSEWHERE, SHARED, SIZE = range(4)


class Living:
    """A buffer of an arena that is placed and still read.

    `LAST`: the last stage that reads it.
    """

    BEGIN, END, LAST, SIZE = range(4)


class Copies:
    """Copies of bound programs of one layout, each with an arena and arrays of its own.

    `TARGET`: the address of the records of the first copy, which those of the others follow.
    `ROWS`: the address of a `Copy` for each.
    `ROW_WORDS`: words of a `Copy`.
    `WORDS`: words of the records of a program.
    `STAGES`: the address of the first step of the stage of each step.
    `POINTERS`: number of slots that hold an address in the records.
    `PLACES`: number of slots that hold an address in the arena.
    `PATCHES`: number of slots that hold an address in an array of the caller. Each of these is
    followed by the address of the numbers of its slots, and by those of the numbers of their
    sources, or of the arrays and of the slots with the offsets.
    """

    COUNT, TARGET, ROWS, ROW_WORDS, WORDS, STAGES, POINTERS, POINTER_SLOTS, PLACES = range(9)
    PLACE_SLOTS, PLACE_SOURCES, PATCHES, PATCH_SLOTS, PATCH_ARRAYS = range(9, 14)
    PATCH_OFFSETS, SIZE = range(14, 16)


class Copy:
    """One copy of a program that was bound to an arena at address 0.

    `RECORDS`: the address of the records that are copied.
    `SOURCES`: the address of the addresses of all sources. Those beyond the arena stay as they are.
    `ARENA`: the address of the copy's arena.
    `ARRAYS`: the addresses of the caller's arrays.
    """

    RECORDS, SOURCES, ARENA_BYTES, ARENA, ARRAYS = range(5)


class Turn:
    """Successive steps of all copies of a layout.

    `LAYOUT`: the number of its `Copies`.
    `FIRST`: the number of the first step.
    """

    LAYOUT, FIRST, STEPS, SIZE = range(4)


class Site:
    """The call cache of one native function: a hash table of `Known` records, and some objects of
    this process.

    `THREADS`: address of the number of threads that calls may use.
    `WORKSPACES`: address of the `FreeWorkspaces`.
    `MOST_WORKSPACE_BYTES`: largest free workspace that a call may take.
    `MISSES`: calls so far that were not in the table.
    `BUSY`: 1 while a program runs: all of them have one workspace. Calls meanwhile are not known.
    `TABLE`: addresses of `Known` records. Each is in one of the `PROBES` slots that begin at its
    hash, modulo `TABLE_SLOTS`, and no slot before it is null.
    """

    NONE, TRUE, FALSE, ARRAY_TYPE, THREADS, WORKSPACES, MOST_WORKSPACE_BYTES, MISSES = range(8)
    BUSY, TABLE = range(8, 10)
    TABLE_SLOTS = 1024
    PROBES = 8
    SEEN = TABLE + TABLE_SLOTS
    """Hashes of calls that were not in the table, placed as those of the table."""
    SIZE = SEEN + TABLE_SLOTS


class Known:
    """An entry of the call cache: a call with arrays of certain layouts. The Python object at
    `OWNER` keeps the other objects alive.

    `THREADS`: threads that the plan was made for.
    `WORKERS`: workers of the plan. If another call has them, the caller does the plan alone.
    `WORKSPACE_BYTES`: 0 if the plan needs none.
    `LAST_USE`: `Site.MISSES` when the entry was last used.
    `B`: address of the word that holds the address of B; 0 if it is the second array.
    `EMPTY`: the function that allocates the result if no `out` is given.
    `ACQUIRE`: the function that takes the pool's lock without waiting.
    `PATIENCE_NS`: a call that takes longer is assumed to have had a preempted worker; 0 for plans
    that are estimated longer than that.
    `SPANS`: for each array of a product, the byte offsets of its lowest byte and of the end of its
    highest one, from its first element.
    """

    HASH, THREADS, ENTRY, PLAN, WORKERS, POOL, WORKSPACE_BYTES, LAST_USE, B, OPERANDS = range(10)
    OWNER, EMPTY, EMPTY_ARGUMENTS, ACQUIRE, ACQUIRE_ARGUMENTS, RELEASE, PATIENCE_NS = range(10, 17)
    SPANS = 17
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
    """The plan of a call of a schedule.

    `ARRAYS`: number of arrays.
    `ADDRESSES`: the word of the record at which the addresses of the arrays begin.
    `RECORD`: the first of the words that the job is given (`tasks.llvm`). Each call sets it, and
    the addresses.
    """

    JOB, POOL, THREADS, ARRAYS, ADDRESSES, RECORD = range(6)


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
    """Words that have values; `codegen.llvm.native.words` looks them up.

    `UTF8`: the address of `PyUnicode_AsUTF8AndSize`.
    `CLASSES`: the address of a byte for each byte: whether it is in a word. 0 if each string is a
    word.
    `LEAST`, `MOST`: characters of the shortest and of the longest word.
    `MASK`: one less than the number of entries, a power of two.
    `ENTRIES`: the address of a `WordEntry` for each word, at the place of its digest or after that.
    `TEXTS`: the address of the UTF-8 of all words, after which there is a byte.
    `OTHER`: the value of words without an entry.
    """

    UTF8, CLASSES, LEAST, MOST, MASK, ENTRIES, TEXTS, OTHER, SIZE = range(9)
    HASH_BASIS, HASH_FACTOR = 0xCBF29CE484222325, 0x100000001B3
    """The constants of FNV-1a with 64 bits (Fowler, Noll and Vo), which makes the digests."""


class WordEntry:
    """A word of a table, or a free place.

    `BEGIN`: where its UTF-8 begins.
    `BYTES`: the length of its UTF-8; -1 in a free place.
    """

    DIGEST, BEGIN, BYTES, VALUE, SIZE = range(5)
