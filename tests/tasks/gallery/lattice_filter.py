import numpy as np

import ftuner
from ftuner.tasks import Out, ceil_div, f32, lanes, repeat, split, tile, worker, workers


def definition(x, k):
    backward, y = np.zeros((5, x.shape[1]), x.dtype), np.empty_like(x)
    for i, forward in enumerate(x):
        for stage in (3, 2, 1, 0):
            forward = forward - k[stage] * backward[stage]
            backward[stage + 1] = backward[stage] + k[stage] * forward
        backward[0] = y[i] = forward
    return y


@ftuner.schedule(definition=definition)
def lattice_filter(x: f32["t", "c"], k: f32[4], y: Out[f32["t", "c"]]):
    for block in split(ceil_div(c, 16), workers)(worker):
        for q in lanes(16):
            channel = block * 16 + q
            if channel < c:
                backward = tile(5)
                for i in range(t):
                    forward = x[i, channel]
                    for j in repeat(4):
                        stage = 3 - j
                        forward -= k[stage] * backward[stage]
                        backward[stage + 1] = backward[stage] + k[stage] * forward
                    backward[0] = forward
                    y[i, channel] = forward
