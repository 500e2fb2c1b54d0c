"""The language of schedules: its words, for use in functions that `ftuner.schedule` reads."""

from ftuner.tasks.language import (
    Out,
    Tile,
    candidates,
    ceil_div,
    f32,
    f64,
    grid,
    lanes,
    pack,
    repeat,
    spatial,
    split,
    tile,
    worker,
    workers,
)

__all__ = [
    "Out",
    "Tile",
    "candidates",
    "ceil_div",
    "f32",
    "f64",
    "grid",
    "lanes",
    "pack",
    "repeat",
    "spatial",
    "split",
    "tile",
    "worker",
    "workers",
]
