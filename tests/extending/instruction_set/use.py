import os

import avx
import numpy as np

import ftuner

os.environ["FTUNER_ISA"] = avx.AVX.name
report = ftuner.tune(calibrate="none")
print(report.isa, [str(tile) for tile in report.funnel.kept])

assert report.isa == "avx"
a, b = (np.random.default_rng(0).standard_normal(s, np.float32) for s in ((77, 256), (256, 64)))
np.testing.assert_allclose(ftuner.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
