"""Rows of operators on signals: Fourier transforms, whole or of frames, and mel weights."""

from __future__ import annotations

import numpy as np
from tests.random_graphs.extents import static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import FLOATS


@row("DFT", 0.3, since=17)
def _dft(maker: Maker) -> None:
    parts = maker.draws.pick((1, 2))
    signal = maker.shaped(
        (maker.extent(), static(maker.draws.pick((1, 2, 5, 8, 12))), static(parts)),
        maker.draws.pick(dtypes_of(maker, "DFT", FLOATS)), 1e3,
    )  # fmt: skip
    have = signal.shape[1].at[0]
    length = maker.draws.pick((have, have, have + 3, max(have - 2, 1)))
    one_sided = parts == 1 and maker.draws.chance(0.5)
    inverse = not one_sided and maker.draws.chance(0.4)
    inputs = [signal, maker.constant(np.array(length, np.int64), share=True)]
    axis = None
    if maker.opset >= 20:
        inputs.append(maker.constant(np.array(maker.draws.pick((1, -2)), np.int64), share=True))
    else:
        axis = 1
    bins = length // 2 + 1 if one_sided else length
    maker.add(
        "DFT", inputs, (signal.shape[0], static(bins), static(2)), signal.dtype, -1e5, 1e5,
        axis=axis, onesided=int(one_sided), inverse=int(inverse),
    )  # fmt: skip


@row("STFT", 0.3, since=17)
def _stft(maker: Maker) -> None:
    length, step = maker.draws.pick((1, 4, 7, 16)), maker.draws.pick((1, 2, 5))
    count = maker.draws.pick((1, 2, 6))
    dtype = maker.draws.pick(dtypes_of(maker, "STFT", FLOATS))
    whole = static(length + step * (count - 1) + maker.draws.below(step))
    signal = maker.shaped((maker.extent(), whole, static(1)), dtype, 1e3)
    window = maker.constant(np.hanning(length + 2)[1:-1].astype(dtype))
    one_sided = maker.draws.chance(0.6)
    bins = length // 2 + 1 if one_sided else length
    shape = (signal.shape[0], static(count), static(bins), static(2))
    inputs = [signal, maker.constant(np.array(step, np.int64), share=True), window]
    maker.add("STFT", inputs, shape, dtype, -1e5, 1e5, onesided=int(one_sided))


@row("MelWeightMatrix", 0.2, since=17)
def _mel(maker: Maker) -> None:
    bins, length = maker.draws.pick((1, 4, 8)), maker.draws.pick((16, 33, 64))
    numbers = [np.array(n, np.int64) for n in (bins, length, 8192)]
    edges = [np.array(n, np.float32) for n in (0.0, maker.draws.pick((2000.0, 4096.0)))]
    inputs = [maker.constant(x, share=True) for x in (*numbers, *edges)]
    shape = (static(length // 2 + 1), static(bins))
    maker.add("MelWeightMatrix", inputs, shape, "float32", 0, 1)
