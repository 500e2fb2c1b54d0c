"""The server of `examples/serve.py` answers clients at once, each as if it was alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from tests.serving.small_server import letters
from tests.serving.test_generator import WORDS, alone, decoder_bytes
from tests.serving.test_unpadding import encoder_bytes

import ftuner

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
SECONDS = 60
TEXTS = ["a", "some words", "more words than before", "the end of it all"] * 8


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join(filter(None, sys.path))
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.serving.small_server", str(port)],
        env={**os.environ, "PYTHONPATH": paths},
    )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + SECONDS
        while True:
            assert server.poll() is None
            assert time.monotonic() < until
            try:
                urlopen(f"{address}/statistics", timeout=SECONDS).read()
                break
            except URLError:
                time.sleep(0.05)
        yield address
        server.send_signal(signal.SIGINT)
        assert server.wait(SECONDS) == 0
    finally:
        server.kill()


def asked(url: str, given: Any) -> Any:
    body = given if isinstance(given, bytes) else json.dumps(given).encode()
    return urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=SECONDS)


def test_vectors(address: str) -> None:
    model = ftuner.load(encoder_bytes())

    def vectors(text: str) -> Any:
        return json.load(asked(f"{address}/embed", {"texts": [text, text + "s"]}))["vectors"]

    with ThreadPoolExecutor(16) as clients:
        for text, found in zip(TEXTS, clients.map(vectors, TEXTS), strict=True):
            for x, given in zip(found, (text, text + "s"), strict=True):
                ids = np.array([letters(given)])
                *_, wanted = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
                assert x == wanted[0].tolist()


def test_texts(address: str) -> None:
    model = ftuner.load(decoder_bytes(positions=False))

    def text(prompt: str) -> Any:
        return asked(f"{address}/generate", {"prompt": prompt, "max_tokens": 20}).read().decode()

    with ThreadPoolExecutor(16) as clients:
        for prompt, found in zip(TEXTS, clients.map(text, TEXTS), strict=True):
            tokens = alone(model, letters(prompt), 20)
            tokens = tokens[: (*tokens, WORDS - 1).index(WORDS - 1)]
            assert found == "".join(chr(ord("A") + token) for token in tokens)


def generation(address: str) -> Any:
    """The statistics of texts."""
    with urlopen(f"{address}/statistics", timeout=SECONDS) as answer:
        return json.load(answer)["generate"]


def test_a_text_is_sent_as_it_grows_and_ends_with_its_client(address: str) -> None:
    model = ftuner.load(decoder_bytes(positions=False))
    prompt = next(x for x in TEXTS if WORDS - 1 not in alone(model, letters(x), 200))
    before = generation(address)
    with asked(f"{address}/generate", {"prompt": prompt, "max_tokens": 1024}) as answer:
        assert answer.read(1) == bytes([ord("A") + alone(model, letters(prompt), 1)[0]])
        assert generation(address)["running"] == 1
    until = time.monotonic() + SECONDS
    while (after := generation(address))["running"]:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert after["texts"] == before["texts"] + 1
    assert after["tokens"] < before["tokens"] + 1024


def test_errors_are_of_one_request(address: str) -> None:
    cases = [
        ("embed", {"texts": ["good", "z"]}, "IndexRangeError"),
        ("embed", {"texts": 3}, "ValueError"),
        ("embed", {}, "KeyError"),
        ("embed", b"{", "JSONDecodeError"),
        ("generate", {"prompt": ""}, "InputError"),
        ("generate", {"prompt": "a", "max_tokens": 0}, "InputError"),
    ]
    for path, given, name in cases:
        with pytest.raises(HTTPError) as caught:
            asked(f"{address}/{path}", given)
        with caught.value as error:
            assert error.code == 400
            assert json.load(error)["error"].startswith(name)
    with urlopen(f"{address}/statistics", timeout=SECONDS) as answer:
        statistics = json.load(answer)
    assert statistics["embed"]["failed"] == 1
    assert statistics["generate"]["waiting"] == 0
