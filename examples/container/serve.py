"""An HTTP server around a sentence encoder: POST token ids as JSON, get the sentence's vector. The
argument is its file, `encoder.onnx` by default.

Each request runs at its own length, in its own thread: nothing is padded or batched.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

import ftuner

PORT = 8000


def answer(model: ftuner.Model, body: bytes) -> list[Any]:
    """The last output of the model for a JSON list of token ids.

    Raises:
        ValueError: not JSON, or not a list of integers, or the model refuses them.
    """
    ids = np.array([json.loads(body)])
    if ids.ndim != 2 or ids.dtype != np.int64:
        raise ValueError("expected a list of token ids")
    *_, vectors = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    return vectors[0].tolist()


def handler(model: ftuner.Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, result = 200, answer(model, body)
            except (ValueError, IndexError) as error:
                status, result = 400, {"error": str(error)}
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(result).encode())

    return Handler


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else "encoder.onnx"
    server = ThreadingHTTPServer(("", PORT), handler(ftuner.load(path)))
    server.serve_forever()
