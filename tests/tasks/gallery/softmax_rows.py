import numpy as np

import ftuner
from ftuner.define import axis, exp, max, sum
from ftuner.tasks import Out, f32, lanes, split, worker, workers


@ftuner.operator("(m, n) -> (m, n)")
def softmax(x):
    def element(i, j):
        top = max(x[i, t] for t in axis)
        return exp(x[i, j] - top) / sum(exp(x[i, t] - top) for t in axis)

    return element


@ftuner.schedule(definition=softmax)
def softmax_rows(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        top = -np.inf
        for j in lanes(n):
            top = max(top, x[i, j])
        total = 0.0
        for j in lanes(n):
            total += np.exp(x[i, j] - top)
        scale = 1 / total
        for j in lanes(n):
            y[i, j] = np.exp(x[i, j] - top) * scale
