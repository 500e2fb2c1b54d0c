import numpy as np

import ftuner
from ftuner.tasks import Out, f32, grid, lanes, repeat, worker, workers


def definition(x, weight):
    (_, h, w), padded = x.shape, np.pad(x, ((0, 0), (1, 1), (1, 1)))
    taps = [(p, q) for p in range(3) for q in range(3)]
    return sum(padded[:, p : p + h, q : q + w] * weight[:, p, q, None, None] for p, q in taps)


@ftuner.schedule(definition=definition)
def depthwise(x: f32["c", "h", "w"], weight: f32["c", 3, 3], y: Out[f32["c", "h", "w"]]):
    for channel, row in grid((c, h), (workers, 1))(worker):
        for column in lanes(w):
            total = 0.0
            for p, q in repeat(3, 3):
                i, j = row + p - 1, column + q - 1
                inside = 0 <= i < h and 0 <= j < w
                total += (x[channel, i, j] if inside else 0.0) * weight[channel, p, q]
            y[channel, row, column] = total
