"""Whether the extra `demo` is installed."""

from importlib.util import find_spec

import pytest

from ftuner.errors import ConfigurationError
from ftuner_tools.demo import page as demo_page
from ftuner_tools.demo import sentences as demo_sentences


def _has_extra() -> bool:
    try:
        demo_sentences.encoder_path()
        demo_page.model_paths()
    except ConfigurationError:
        return False
    return all(map(find_spec, ("blingfire", "onnx", "skimage", "cv2")))


needs_extra = pytest.mark.skipif(not _has_extra(), reason="the extra `demo` is not installed")
