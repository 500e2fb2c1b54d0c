import numpy as np

import ftuner
from ftuner.tasks import Out, Tile, candidates, ceil_div, f32, grid, lanes, repeat, tile
from ftuner.tasks import worker, workers


@ftuner.schedule(definition=np.matmul)
def matmul(
    a: f32["m", "k"],
    b: f32["k", "n"],
    c: Out[f32["m", "n"]],
    mr: Tile = candidates(1, 2, 4, 6, 8, 12),
    nr: Tile = candidates(8, 16, 32),
):
    tasks = grid((ceil_div(m, mr), ceil_div(n, nr)), (workers, 1))
    for i, j in tasks(worker):
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
