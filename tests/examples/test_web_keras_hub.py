"""Files of KerasHub's tasks in headless Chromium: WordPiece and byte-level BPE, asked with text."""

import importlib.util

import pytest
from web_pages import answers_of, need_browser, run_in_browser

from keras_tfm import runtime
from keras_tfm.export import export_tflite

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="needs keras-hub"),
    # A warning of KerasHub's own layers.
    pytest.mark.filterwarnings("ignore:Layer .* (does not support masking|looks like it has un)"),
]


def test_texts_in_a_page_are_answered_as_in_python(tmp_path):
    """Lines in ten languages."""
    need_browser()
    from small_hub_tasks import classifier, gpt2, short_texts

    files = {}
    for name, task in (("classifier", classifier()), ("writer", gpt2())):
        texts = short_texts(task, 12)
        export_tflite(task, tmp_path / f"{name}.tflite", verify=False)
        model = runtime.load(tmp_path / f"{name}.tflite")
        files[name] = {"texts": texts, **answers_of(model, texts)}
    run_in_browser("test:files", tmp_path, {"exact": True, "files": files})
