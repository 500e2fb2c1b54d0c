"""Layouts of the records that binding writes for native code, once for a graph or for a shape."""

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
