"""Layouts of the records of call caches, and of the arrays that a call is looked up by."""

from __future__ import annotations


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
