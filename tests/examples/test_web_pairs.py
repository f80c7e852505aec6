"""Files of several models in headless Chromium: model.js and the page emoji.html."""

import numpy as np
import pytest
from web_pages import need_browser, run_in_browser

from keras_tfm import runtime

Image = pytest.importorskip("PIL.Image")
TEXTS = ["abba", "a cab", "hide", "min"]


def sentences(folder):
    """Texts with their vectors from a file of embeddings, which truncates the last ones."""
    from keras_weights import randomize
    from small_pairs import letters

    from keras_tfm import models
    from keras_tfm.export import export_tflite

    small = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 12, "max_length": 12}
    model = models.sentence_embedding(models.bert(32, **small, segments=False), max_seq_length=6)
    path = folder / "sentences.tflite"
    export_tflite(randomize(model), path, tokenizer=letters(), source_length=[4, 12], verify=False)
    file = runtime.load(path)
    assert np.abs(file.embed("abba cab") - file.embed("hide a")).max() > 1e-3
    assert np.array_equal(file.embed("abba cab"), file.embed("abba hide"))  # start, 4, end
    asked = [("a", None), ("zz", None), ("a cab", 5), ("abba cab", None), ("abba cab", 3)]
    return [
        {"text": text, "dimensions": n, "vector": file.embed(text, dimensions=n).tolist()}
        for text, n in asked
    ]


@pytest.mark.browser
def test_several_models_and_the_page_answer_as_python_does(tmp_path):
    """Also a screenshot, emoji.png, in the test's folder."""
    from emoji_search import Pairs, character, page_data
    from small_exports import with_manifest
    from small_pairs import PICTURES, PROCESSOR, letters, pair

    from keras_tfm import models
    from keras_tfm.export import export_tflite

    need_browser()
    file = tmp_path / "pair.tflite"
    export_tflite(
        models.clip_towers(pair()),
        file,
        tokenizer=letters(),
        images=PROCESSOR,
        source_length=[6, 13],
    )
    loaded = runtime.load(file)
    generator = np.random.default_rng(0)
    codes = [f"{0x1F600 + i:x}" for i in range(50)]  # two rows of the page's sheet
    drawn = generator.integers(0, 256, (50, 48, 48, 3), "uint8")
    vectors = generator.normal(size=(50, 33)).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    page_data(file, vectors, Pairs(codes, drawn[:, None], drawn, {}, np.ones((0, 50), bool)))
    Image.fromarray(PICTURES[0]).save(tmp_path / "noise.png")
    texts = []
    for text in TEXTS:
        vector = loaded.embed_text(text)
        scores = vectors @ vector
        order = np.argsort(-scores)
        assert np.diff(-scores[order]).min() > 1e-5  # float32 differs less in the browser
        emoji = [character(codes[i]) for i in order]
        texts.append({"text": text, "vector": vector.tolist(), "order": emoji})
    image = loaded.embed_image(tmp_path / "noise.png").tolist()
    stray = with_manifest(
        file.read_bytes(), lambda manifest: manifest["signatures"]["text_6"].update(model="other")
    )
    (tmp_path / "stray.tflite").write_bytes(stray)
    expected = {
        "picture": "noise.png", "image": image, "texts": texts, "sentences": sentences(tmp_path),
    }  # fmt: skip
    run_in_browser("test:pairs", tmp_path, expected, SCREENSHOTS=tmp_path)
    assert (tmp_path / "emoji.png").stat().st_size > 10_000
