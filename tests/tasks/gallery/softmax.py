import numpy as np

import ftuner
from ftuner.tasks import Out, f32, lanes, split, worker, workers


def definition(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=1, keepdims=True)


@ftuner.schedule(definition=definition)
def softmax(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        top = -np.inf
        for j in lanes(n):
            top = max(top, x[i, j])
        total = 0.0
        for j in lanes(n):
            power = np.exp(x[i, j] - top)
            y[i, j] = power
            total += power
        scale = 1 / total
        for j in lanes(n):
            y[i, j] = y[i, j] * scale
