"""Operators with schedules, for tests."""

from typing import Any

import numpy as np
from tests.tasks.gallery.softmax_rows import softmax_rows

import ftuner
from ftuner.define import axis, mean, sqrt, sum
from ftuner.tasks import (
    Out,
    Tile,
    candidates,
    ceil_div,
    f32,
    grid,
    lanes,
    repeat,
    split,
    tile,
    worker,
    workers,
)


@ftuner.operator("(m, k), (k, n) -> (m, n)")
def matmul(a: Any, b: Any) -> Any:
    return lambda i, j: sum(a[i, t] * b[t, j] for t in axis)


@ftuner.schedule(definition=matmul)
def matmul_tiles(
    a: f32["m", "k"],
    b: f32["k", "n"],
    c: Out[f32["m", "n"]],
    mr: Tile = candidates(1, 4),
    nr: Tile = candidates(8, 32),
):
    for i, j in grid((ceil_div(m, mr), ceil_div(n, nr)), (workers, 1))(worker):
        sums = tile(mr, nr)
        for p in range(k):
            for r in repeat(mr):
                for q in lanes(nr):
                    row, column = i * mr + r, j * nr + q
                    if row < m and column < n:
                        sums[r, q] += a[row, p] * b[p, column]
        for r in repeat(mr):
            for q in lanes(nr):
                row, column = i * mr + r, j * nr + q
                if row < m and column < n:
                    c[row, column] = sums[r, q]


@ftuner.operator("(m, k), (k, n) -> (m, n)")
def packed_matmul(a: Any, b: Any) -> Any:
    return lambda i, j: sum(a[i, t] * b[t, j] for t in axis)


@ftuner.schedule(definition=packed_matmul)
def packed_tiles(
    a: f32["m", "k"],
    b: f32["k", "n"],
    c: Out[f32["m", "n"]],
    mr: Tile = candidates(2, 4),
    nr: Tile = candidates(8, 32),
):
    for i, j in grid((ceil_div(m, mr * 4), ceil_div(n, nr)), (1, workers))(worker):
        panel = pack(
            b[p, j * nr + q] if j * nr + q < n else 0.0 for p in range(k) for q in lanes(nr)
        )
        rows = pack(
            a[i * 4 * mr + s, p] if i * 4 * mr + s < m else 0.0
            for s in range(4 * mr)
            for p in lanes(k)
        )
        for s in range(4):
            first = (i * 4 + s) * mr
            if first < m:
                sums = tile(mr, nr)
                for p in range(k):
                    for r in repeat(mr):
                        for q in lanes(nr):
                            sums[r, q] += rows[s * mr + r, p] * panel[p, q]
                for r in repeat(mr):
                    for q in lanes(nr):
                        column = j * nr + q
                        if first + r < m and column < n:
                            c[first + r, column] = sums[r, q]


@ftuner.operator("(m, n), (n) -> (m, n), (m)")
def centred(x: Any, gain: Any) -> Any:
    def size(i: Any) -> Any:
        return sqrt(mean(x[i, t] ** 2 for t in axis) + 1e-5)

    return lambda i, j: x[i, j] / size(i) * gain[j], size


@ftuner.schedule(definition=centred)
def centred_rows(x: f32["m", "n"], gain: f32["n"], y: Out[f32["m", "n"]], size: Out[f32["m"]]):
    for i in split(m, workers)(worker):
        squares = 0.0
        for j in lanes(n):
            y[i, j] = x[i, j]
            squares += x[i, j] ** 2
        root = np.sqrt(squares / n + 1e-5)
        for j in lanes(n):
            y[i, j] = y[i, j] / root * gain[j]
        size[i] = root


@ftuner.operator("(m, n) -> (n, m)")
def turned(x: Any) -> Any:
    return lambda i, j: x[j, i] * 2


@ftuner.schedule(definition=turned)
def turned_columns(x: f32["m", "n"], y: Out[f32["n", "m"]]):
    for j in split(n, workers)(worker):
        for i in lanes(m):
            y[j, i] = x[i, j] * 2


SCHEDULES = (softmax_rows, matmul_tiles, packed_tiles, centred_rows, turned_columns)
