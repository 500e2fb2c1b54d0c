import numpy as np

import ftuner
from ftuner.tasks import Out, ceil_div, f32, grid, lanes, repeat, tile, worker, workers


def definition(x, step, a, b, c):
    state = np.zeros((x.shape[0], 16, x.shape[2]), x.dtype)
    y = np.empty_like(x)
    for i in range(x.shape[1]):
        gates = np.exp(step[:, i, None] * a)
        state = gates * state + b[:, i, :, None] * (step[:, i] * x[:, i])[:, None]
        y[:, i] = (state * c[:, i, :, None]).sum(axis=1)
    return y


@ftuner.schedule(definition=definition)
def selective_scan(
    x: f32["n", "t", "d"],
    step: f32["n", "t", "d"],
    a: f32[16, "d"],
    b: f32["n", "t", 16],
    c: f32["n", "t", 16],
    y: Out[f32["n", "t", "d"]],
):
    for request, block in grid((n, ceil_div(d, 16)), (workers, 1))(worker):
        for q in lanes(16):
            channel = block * 16 + q
            if channel < d:
                state = tile(16)
                for i in range(t):
                    width = step[request, i, channel]
                    given, total = width * x[request, i, channel], 0.0
                    for e in repeat(16):
                        gate = np.exp(width * a[e, channel])
                        state[e] = gate * state[e] + b[request, i, e] * given
                        total += state[e] * c[request, i, e]
                    y[request, i, channel] = total
