"""A program to be frozen: `frozen_program MODEL STARTS` runs a model in every way, and adds a line
to the file STARTS each time that it is started."""

import os
import sys
from importlib import import_module

import numpy as np

import ftuner
import ftuner.ort

if __name__ == "__main__":
    model, starts = sys.argv[-2:]
    with open(starts, "a") as file:
        file.write(f"{os.getpid()}\n")
    x = np.linspace(-1, 1, 5 * 64, dtype=np.float32).reshape(5, 64)
    (expected,) = ftuner.load(model, threads=2)(x=x).values()
    (found,) = ftuner.ort.InferenceSession(model).run(None, {"x": x})
    assert np.array_equal(found, expected)
    ftuner.ort.install()
    # By name: PyInstaller would add a real one.
    onnxruntime = import_module("onnxruntime")
    assert onnxruntime.InferenceSession is ftuner.ort.InferenceSession
    assert np.allclose(ftuner.matmul(x, x.T), x @ x.T, atol=1e-5)
    assert ftuner.attention(x[None], x[None], x[None]).shape == (1, 5, 64)
    assert ftuner.hardware().isas
    print(ftuner.explain(5, 64, 64))
    np.save(starts + ".npy", found)
