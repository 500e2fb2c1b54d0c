import numpy as np

import ftuner
from ftuner.tasks import Out, Tile, candidates, ceil_div, f32, grid, lanes, pack, repeat, tile
from ftuner.tasks import worker, workers

ROWS = 32  # Tiles of rows that read one panel.


@ftuner.schedule(definition=np.matmul)
def packed_matmul(
    a: f32["m", "k"],
    b: f32["k", "n"],
    c: Out[f32["m", "n"]],
    mr: Tile = candidates(2, 4, 6, 8, 12),
    nr: Tile = candidates(8, 16, 32),
):
    tasks = grid((ceil_div(m, mr * ROWS), ceil_div(n, nr)), (1, workers))
    for i, j in tasks(worker):
        panel = pack(
            b[p, j * nr + q] if j * nr + q < n else 0.0 for p in range(k) for q in lanes(nr)
        )
        for s in range(ROWS):
            first = (i * ROWS + s) * mr
            if first < m:
                sums = tile(mr, nr)
                for p in range(k):
                    for r in repeat(mr):
                        for q in lanes(nr):
                            if first + r < m:
                                sums[r, q] += a[first + r, p] * panel[p, q]
                for r in repeat(mr):
                    for q in lanes(nr):
                        column = j * nr + q
                        if first + r < m and column < n:
                            c[first + r, column] = sums[r, q]
