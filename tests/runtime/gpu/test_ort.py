"""Sessions of onnxruntime's interface on a device, which is interpreted."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.frontends.onnx_models import parsed

import ftuner.ort
from ftuner.errors import UnsupportedOperatorError
from ftuner.runtime.gpu.backend import GpuBackend

WEIGHT = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
BOTH = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def layer() -> bytes:
    nodes = "product = MatMul(x, weight) y = Relu(product)"
    model = parsed(f"(float[batch, 8] x) => (y) {{ {nodes} }}", weight=WEIGHT)
    data: bytes = model.SerializeToString()
    return data


@pytest.fixture
def asked(h200: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that sessions ask for; each is the interpreted one."""
    found: list[str] = []

    def backend_of(device: str) -> GpuBackend:
        found.append(device)
        return h200

    monkeypatch.setattr("ftuner.runtime.request.backend_of", backend_of)
    monkeypatch.setattr("ftuner.ort.providers.has_cuda", lambda: True)
    return found


def test_the_cuda_provider_is_the_gpu(asked: list[str]) -> None:
    assert ftuner.ort.get_available_providers() == BOTH
    assert ftuner.ort.get_device() == "GPU"
    session = ftuner.ort.InferenceSession(layer(), providers=[(BOTH[0], {"device_id": 1}), BOTH[1]])
    assert asked == ["cuda:1"]
    assert session.get_providers() == BOTH
    assert session.get_provider_options() == {BOTH[0]: {"device_id": "1"}, BOTH[1]: {}}
    assert session.device == 1
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-5)
    (listed,) = session.run(["y"], {"x": x.tolist()})
    np.testing.assert_array_equal(listed, found)


def test_the_first_provider_counts(asked: list[str]) -> None:
    for given in (None, [], BOTH[1:], BOTH[::-1]):
        assert ftuner.ort.InferenceSession(layer(), providers=given).device is None
    assert set(asked) == {"cpu"}


def test_operators_that_the_gpu_lacks(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    backend_of = ftuner.runtime.request.backend_of

    def refusing(device: str) -> GpuBackend:
        if device != "cpu":
            raise UnsupportedOperatorError("no kernel of Relu")
        return backend_of(device)

    monkeypatch.setattr("ftuner.runtime.request.backend_of", refusing)
    with pytest.warns(UserWarning, match="no kernel of Relu; the CPU is used instead"):
        session = ftuner.ort.InferenceSession(layer(), providers=BOTH)
    assert session.get_providers() == BOTH[1:]
    with pytest.raises(NotImplementedError, match="no kernel of Relu"):
        ftuner.ort.InferenceSession(layer(), providers=BOTH, enable_fallback=0)


@pytest.mark.parametrize("given", ["one", -1, "1.5"])
def test_numbers_of_devices(asked: list[str], given: object) -> None:
    with pytest.raises(ValueError, match="device_id of CUDAExecutionProvider is"):
        ftuner.ort.InferenceSession(
            layer(), providers=[(BOTH[0], {"device_id": given})], enable_fallback=0
        )
