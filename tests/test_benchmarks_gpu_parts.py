"""Parts of the GPU benchmarks: timing, right answers, operands and captures."""

import json
import random
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace

import pytest


def test_bursts_are_interleaved_and_copies_rotate():
    pytest.importorskip("torch")
    from benchmarks.gpu_timing import Burst, Settings, measure

    log: list[str] = []

    class Meter:
        """Each burst takes a millisecond a call more than the last."""

        def __init__(self) -> None:
            self.seconds = 0.0

        def burst(self, calls, ahead, host_s):
            for call in calls:
                call()
            self.seconds += 1e-3
            return Burst(self.seconds, 1e-6)

    calls = {name: [lambda n=name, i=i: log.append(f"{n}{i}") for i in (0, 1)] for name in "ab"}
    settings = Settings(burst_s=0.0, burst_calls=1, rounds=3)
    timings = measure(calls, Meter(), settings, random.Random(0))
    # Three calls to warm up, then one a round.
    assert [x for x in log if x[0] == "a"] == ["a0", "a1", "a0", "a1", "a0", "a1"]
    rounds = log[6:]
    assert all({rounds[i][0], rounds[i + 1][0]} == {"a", "b"} for i in (0, 2, 4))
    for timing in timings.values():
        assert timing.rounds == 3
        assert timing.min_s < timing.median_s


def test_wrong_results_are_told_from_rounding():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_bench import ENDLESS, error_of

    torch.manual_seed(0)
    x, w = torch.randn(70, 4096).bfloat16(), torch.randn(4096, 24).bfloat16()
    y = (x.double() @ w.double()).bfloat16()
    assert error_of(y, x, w, "bfloat16") < 1.0
    short = (x[:, :-32].double() @ w[:-32].double()).bfloat16()
    assert error_of(short, x, w, "bfloat16") > 1.0
    y[-1, 3] = torch.nan
    assert error_of(y, x, w, "bfloat16") == ENDLESS


class Device:
    """What captures ask of `torch.cuda`."""

    def __init__(self) -> None:
        self.waiting, self.current, self.captures = "default", "main", 0
        self.captured: list | None = None

    def launch(self, work) -> None:
        if self.captured is not None:
            self.captured.append(work)
        work()

    def synchronize(self, device=None) -> None:
        if self.waiting == "error":
            raise RuntimeError("it waits")

    def get_sync_debug_mode(self) -> str:
        return self.waiting

    def set_sync_debug_mode(self, mode: str) -> None:
        self.waiting = mode

    def current_stream(self, device) -> str:
        return self.current

    def set_stream(self, stream: str) -> None:
        self.current = stream

    def Stream(self, device):  # noqa: N802
        return SimpleNamespace(wait_stream=lambda other: None)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def CUDAGraph(self):  # noqa: N802
        found = SimpleNamespace(work=[])
        found.replay = lambda: [work() for work in found.work]
        return found

    @contextmanager
    def graph(self, graph, stream):
        """As PyTorch's, it leaves its stream the current one where something fails."""
        self.captures += 1
        before, self.current, self.captured = self.current, stream, graph.work
        yield
        self.current, self.captured = before, None


def test_what_is_wrong_of_an_attention_is_told():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_attention import Attention, error_of

    case = Attention("", "bfloat16", 2, 1, 64, (70,), (200,), True)
    q, k, v = (torch.randn(h, n, 64).bfloat16() for h, n in ((2, 70), (1, 200), (1, 200)))
    scores = (q.double() @ k.double().mT / 8).masked_fill(
        ~torch.ones(70, 200, dtype=torch.bool).tril(130), -torch.inf
    )
    right = (scores.softmax(-1).bfloat16().double() @ v.double()).bfloat16()
    assert error_of(right, q, k, v, "bfloat16", True) < 1.0
    wrong = (scores.masked_fill(scores > 2, 2.0).softmax(-1) @ v.double()).bfloat16()
    assert error_of(wrong, q, k, v, "bfloat16", True) > 1.0
    # 70 rows see 131 to 200 of the keys.
    assert case.flops == 4 * 2 * 64 * sum(range(131, 201))


def test_requests_of_unequal_length_are_given_to_any_varlen_attn():
    """With functions of its known signatures in its place, which multiply in PyTorch."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_attention import Attention, Operands
    from benchmarks.gpu_bench import Bench
    from benchmarks.gpu_timing import HostMeter

    def whole(q, k, v, q_ends, k_ends, longest, causal):
        assert q.shape[1:] == (4, 8)
        assert q_ends.dtype == torch.int32
        assert longest == (9, 9)
        found = torch.empty_like(q)
        for first, last in pairwise(q_ends.tolist()):
            parts = (x[first:last].transpose(0, 1) for x in (q, k, v))
            found[first:last] = torch.nn.functional.scaled_dot_product_attention(
                *parts, is_causal=causal, enable_gqa=True
            ).transpose(0, 1)
        return found

    def by_flag(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
        return whole(q, k, v, cu_seq_q, cu_seq_k, (max_q, max_k), is_causal)

    def by_window(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
        return whole(q, k, v, cu_seq_q, cu_seq_k, (max_q, max_k), window_size == (-1, 0))

    def grouped(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1),
                enable_gqa=False):  # fmt: skip
        assert enable_gqa == (q.shape[1] != k.shape[1])
        return by_window(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window_size)

    backend = SimpleNamespace(device=torch.device("cpu"), attentions=None)
    bench = Bench(backend, HostMeter(), dry=True)
    for causal, shared in product((True, False), (2, 4)):
        case = Attention("", "float32", 4, shared, 8, (5, 9, 1), (5, 9, 1), causal)
        operands = Operands(bench, case)
        for function in (by_flag, by_window, grouped):
            for number, call in enumerate(operands.varlen(function)):
                assert operands.error(call, number) < 1.0


def test_grouped_products_of_pytorch_are_right():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_bench import Bench
    from benchmarks.gpu_groups import GROUPED_MM, Grouped, Operands
    from benchmarks.gpu_timing import HostMeter

    bench = Bench(SimpleNamespace(device=torch.device("cpu")), HostMeter(), dry=True)
    experts = Grouped("experts", "bfloat16", ((3, 24, 16), (0, 24, 16), (17, 24, 16)))
    unequal = Grouped("unequal", "bfloat16", ((3, 24, 16), (5, 8, 0), (17, 7, 33)))
    peers = [set(Operands(bench, case).vendor()) for case in (experts, unequal)]
    assert peers == [{"torch, one by one", GROUPED_MM}, {"torch, one by one"}]
    for case in (experts, unequal):
        operands = Operands(bench, case)
        for calls in operands.vendor().values():
            for number, call in enumerate(calls):
                assert operands.error(call, number) < 1.0
        # Of the copies of another number.
        assert operands.error(operands.vendor()["torch, one by one"][0], 1) > 1.0


def test_the_workloads_fit_the_caches_they_should_not():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_cases import MAX_COPIES, bmm_cases, gemm_cases, rotated
    from benchmarks.gpu_groups import grouped_cases

    l2_bytes = 50 << 20
    cases = [*gemm_cases(), *bmm_cases(), *grouped_cases()]
    assert len(cases) > 300
    assert len({case.label for case in cases}) == len(cases)
    for case in cases:
        copies = rotated(case.bytes, l2_bytes)
        assert copies >= 2
        assert copies == MAX_COPIES or copies * case.bytes > 3 * l2_bytes
    assert json.dumps([case.label for case in cases])


def test_a_run_that_is_cut_off_has_some_of_everything():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_bench import ordered
    from benchmarks.gpu_cases import gemm_cases

    cases = ordered(gemm_cases())
    assert sorted(map(str, cases)) == sorted(map(str, gemm_cases()))
    assert cases == ordered(gemm_cases())
    first = cases[: len(cases) // 4]
    assert {case.multiply for case in first} == {"bfloat16"}
    assert {case.set for case in first} == {case.set for case in cases}
    layers = [case.m for case in first if case.set == "llama-8b"]
    assert min(layers) <= 8
    assert max(layers) >= 2048


def test_buckets():
    pytest.importorskip("torch")
    from benchmarks.gpu_cases import Product
    from benchmarks.gpu_padding import BUCKETS, padded_lengths, padded_rows

    rows = (1, 2, 3, 63, 64, 65, 6001)
    found = {name: [bucket(m) for m in rows] for name, bucket in BUCKETS.items()}
    assert found == {
        "powers of two": [1, 2, 4, 64, 64, 128, 8192],
        "multiples of 64": [64, 64, 64, 64, 64, 128, 6016],
    }
    layer = Product("llama-8b", "bfloat16", "nt", 0, 65, 8, 8)
    two, many = "torch, padded to powers of two", "torch, padded to multiples of 64"
    assert padded_rows(layer) == {two: 128, many: 128}
    assert padded_rows(replace(layer, m=64)) == {}
    assert padded_rows(replace(layer, batch=2)) == padded_rows(replace(layer, set="mlp")) == {}
    assert padded_lengths(300, 384) == {two: 384, many: 320}


def test_modules_are_given_what_their_users_give():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    pytest.importorskip("onnx")
    from benchmarks.gpu_subjects import given
    from benchmarks.onnx_models import TINY_ENCODER
    from benchmarks.torch_models import made

    (states,) = given({"x": torch.randn(1, 3, 8)}, "bfloat16", False).values()
    assert states.dtype == torch.bfloat16
    ids = torch.randint(0, TINY_ENCODER.vocabulary, (2, 5))
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    alone = {name: x[:1] for name, x in feeds.items()}
    assert set(given(feeds, "tf32", False)) == set(given(alone, "tf32", True)) == set(feeds)
    assert set(given(alone, "tf32", False)) == {"input_ids"}
    module = made(TINY_ENCODER, torch.device("cpu"))
    torch.testing.assert_close(
        module(*given(alone, "tf32", False).values()), module(*alone.values())
    )


def test_captures_replay_on_the_inputs_given(monkeypatch):
    """With a device of ours in place of CUDA, which runs again what was captured."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    pytest.importorskip("onnx")
    from benchmarks import gpu_models
    from benchmarks.gpu_padding import padded, trimmed

    device = Device()
    monkeypatch.setattr(torch, "cuda", device)
    tables = torch.arange(12.0).reshape(4, 3)

    def run(feeds):
        device.launch(lambda: out.copy_(feeds["x"] @ tables))
        return out

    out = torch.empty(2, 8, 3)
    x, y = (torch.randn(2, 5, 4) for _ in range(2))
    replay = gpu_models.captured(run, padded({"x": x}, 8), torch.device("cpu"))
    assert device.waiting == "default"
    for given in (y, x, y):
        torch.testing.assert_close(trimmed(replay({"x": given}), 5), given @ tables)
        assert not out[:, 5:].any()

    def waits(feeds):
        device.synchronize()
        return run(feeds)

    def fails(feeds):
        if device.captured is not None:
            raise RuntimeError("it fails")
        return run(feeds)

    # What waits is not captured at all.
    for other, why, captures in ((waits, "waits", 1), (fails, "fails", 2)):
        with pytest.raises(RuntimeError, match=why):
            gpu_models.captured(other, padded({"x": x}, 8), torch.device("cpu"))
        assert (device.waiting, device.current, device.captures) == ("default", "main", captures)
