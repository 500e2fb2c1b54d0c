import numpy as np

import ftuner
from ftuner.tasks import Out, f32, lanes, split, worker, workers

EPSILON = 1e-5


def definition(x, residual, gain, bias):
    s = x + residual
    n = max(x.shape[1], 1)
    apart = s - s.sum(axis=1, keepdims=True) / n
    variance = (apart**2).sum(axis=1, keepdims=True) / n
    return s, apart / np.sqrt(variance + EPSILON) * gain + bias


@ftuner.schedule(definition=definition)
def layer_norm(
    x: f32["m", "n"],
    residual: f32["m", "n"],
    gain: f32["n"],
    bias: f32["n"],
    s: Out[f32["m", "n"]],
    y: Out[f32["m", "n"]],
):
    for i in split(m, workers)(worker):
        total = 0.0
        for j in lanes(n):
            both = x[i, j] + residual[i, j]
            s[i, j] = both
            total += both
        mean = total / n
        squares = 0.0
        for j in lanes(n):
            squares += (s[i, j] - mean) ** 2
        scale = 1 / np.sqrt(squares / n + EPSILON)
        for j in lanes(n):
            y[i, j] = (s[i, j] - mean) * scale * gain[j] + bias[j]
