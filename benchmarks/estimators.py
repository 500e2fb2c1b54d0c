"""`python -m benchmarks.estimators`: estimators of scikit-learn, against onnxruntime.

Files are those of skl2onnx, which needs `pip install skl2onnx`; of each, batches of several sizes.
Printed are onnxruntime's times over ftuner's: above one, ftuner is faster.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import skl2onnx
import typer
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn import ensemble, impute, linear_model, naive_bayes, neighbors, neural_network, svm
from sklearn import preprocessing as pre
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline

from benchmarks import machine
from benchmarks.operators import ratio

ROWS = (1, 100, 10_000)
SAMPLES, FEATURES, CLASSES = 2000, 10, 3
OPSETS = {"": 21, "ai.onnx.ml": 3}
Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(0)
WORDS = [
    f"{a}{b}{c}" for a in "btkml" for b in ("a", "o", "ie", "u") for c in ("n", "rd", "st", "")
]


def _text() -> str:
    """Some words of one line."""
    return " ".join(RANDOM.choice(WORDS, RANDOM.integers(5, 40)))


X = RANDOM.standard_normal((SAMPLES, FEATURES), np.float32)
Y = (X[:, :CLASSES] + RANDOM.standard_normal((SAMPLES, CLASSES))).argmax(1)
LINES = np.array([[_text()] for _ in range(SAMPLES)], object)
NAMES = RANDOM.choice(WORDS[:20], (SAMPLES, 3)).astype(object)
NUMBERS = RANDOM.integers(0, 20, (SAMPLES, 3))
HOLES = np.where(RANDOM.random(X.shape) < 0.1, np.float32(np.nan), X)


def _scaled(last: Any) -> Pipeline:
    return make_pipeline(pre.StandardScaler(), last)


ESTIMATORS: Mapping[str, tuple[Array, Callable[[], Any]]] = {
    "logistic": (X, linear_model.LogisticRegression),
    "linear": (X, linear_model.LinearRegression),
    "scaler, logistic": (X, lambda: _scaled(linear_model.LogisticRegression())),
    "scaler": (X, pre.StandardScaler),
    "normalizer": (X, pre.Normalizer),
    "imputer": (HOLES, impute.SimpleImputer),
    "min and max": (X, pre.MinMaxScaler),
    "binarizer": (X, pre.Binarizer),
    "polynomials": (X, lambda: pre.PolynomialFeatures(2)),
    "bins": (
        X,
        lambda: pre.KBinsDiscretizer(
            5, encode="ordinal", quantile_method="averaged_inverted_cdf"
        ),
    ),
    "one hot of strings": (NAMES, pre.OneHotEncoder),
    "one hot of integers": (NUMBERS, pre.OneHotEncoder),
    "ordinal of strings": (NAMES, pre.OrdinalEncoder),
    "one hot, logistic": (
        NAMES, lambda: make_pipeline(pre.OneHotEncoder(), linear_model.LogisticRegression())
    ),
    "forest": (X, lambda: ensemble.RandomForestClassifier(100, max_depth=8)),
    "forest of values": (X, lambda: ensemble.RandomForestRegressor(20, max_depth=12)),
    "boosting": (X, lambda: ensemble.GradientBoostingClassifier(n_estimators=50)),
    "isolation": (X, lambda: ensemble.IsolationForest(n_estimators=50)),
    "support vectors": (X, svm.SVC),
    "support vectors, probabilities": (X, lambda: svm.SVC(probability=True)),
    "support vectors of values": (X, svm.SVR),
    "linear support vectors": (X, svm.LinearSVC),
    "bayes": (X, naive_bayes.GaussianNB),
    "neighbours": (X, neighbors.KNeighborsClassifier),
    "perceptron": (X, lambda: neural_network.MLPClassifier(64, max_iter=20)),
    "words, logistic": (
        LINES, lambda: make_pipeline(TfidfVectorizer(), linear_model.LogisticRegression())
    ),
    "counts, linear": (
        LINES, lambda: make_pipeline(CountVectorizer(), linear_model.SGDClassifier())
    ),
    "pairs of words, logistic": (
        LINES,
        lambda: make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2)), linear_model.LogisticRegression()
        ),
    ),
    "characters, logistic": (
        LINES,
        lambda: make_pipeline(
            CountVectorizer(analyzer="char", ngram_range=(2, 3)), linear_model.LogisticRegression()
        ),
    ),
}  # fmt: skip


def _model(x: Array, estimator: Any) -> bytes:
    """The file of an estimator. Where it has probabilities, they are a matrix."""
    types = {"f": FloatTensorType, "i": Int64TensorType}
    kind = types.get(x.dtype.kind, StringTensorType)
    texts = x.dtype.hasobject and x.shape[1] == 1
    estimator.fit(x[:, 0] if texts else x, Y)
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    options: dict[int, dict[str, Any]] = {}
    if hasattr(last, "predict_proba"):
        options[id(last)] = {"zipmap": False}
    if texts:
        options[id(estimator[0])] = {"locale": "C"}
    given = [("x", kind([None, x.shape[1]]))]
    made = skl2onnx.to_onnx(estimator, initial_types=given, options=options, target_opset=OPSETS)
    return bytes(made.SerializeToString())


def main(
    threads: Annotated[int, typer.Option(help="Threads of both.")] = 1,
    only: Annotated[str, typer.Option(help="Part of the labels to run.")] = "",
) -> None:
    """Measure each estimator, and print a line for it."""
    print(machine.describe().name, machine.versions(), f"{threads} threads")
    for label, (data, make) in ESTIMATORS.items():
        if only not in label:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "estimator.onnx")
            path.write_bytes(_model(data, make()))
            ratios = []
            for rows in ROWS:
                x = np.resize(data, (rows, *data.shape[1:]))
                ratios.append(ratio(path, {"x": x}, threads))
        print(" ".join(f"{found:6.2f}" for found in ratios), "", label, flush=True)


if __name__ == "__main__":
    typer.run(main)
