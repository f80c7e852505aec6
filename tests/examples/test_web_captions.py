"""Captions in headless Chromium: model.js and a page write Python's tokens."""

import shutil

import numpy as np
import pytest
import small_answerer
import small_captioners
import small_smolvlm
from keras_weights import randomize
from small_captioners import KINDS, LENGTH, PICTURES, PROCESSOR, START, STEPPED, WHOLE
from small_tokenizers import END, WORDS, words
from web_pages import WEB, need_browser, run_in_browser

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.web import write_page

Image = pytest.importorskip("PIL.Image")
PROMPTS = ([START], [START, 5, 9])
SMALL = runtime.ImageProcessor((8, 8))


def gemma3(path):
    """A file of a model in which the tokens of a picture see each other, with a chat template."""
    model = randomize(
        models.gemma3(
            len(WORDS), dim=16, num_layers=2, num_heads=2, intermediate_dim=12, head_dim=4,
            image_id=small_answerer.IMAGE, image_size=8, patch_size=2, pool_size=2, pad_id=0,
            image={"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7},
        ),
        seed=5,
    )  # fmt: skip
    for weight in model.weights:  # so that pictures tell
        if weight.name == "kernel":
            weight.assign(3 * weight)
    picture = WORDS[small_answerer.IMAGE]
    return runtime.load(
        export_tflite(
            model, path, max_length=15, end_id=END, prompt_length=9, images=SMALL,
            tokenizer={"target": words(len(WORDS))},
            chat_template=runtime.ChatTemplate(f"two {picture} ", " three", " two "),
        ).path
    )  # fmt: skip


@pytest.mark.browser
def test_captions_are_those_of_python(tmp_path):
    """Of the six kinds of files. Also a screenshot, caption.png, in the test's folder."""
    need_browser()
    names = [f"{i}.png" for i in range(len(PICTURES))]
    for name, pixels in zip(names, PICTURES, strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    pixels = PROCESSOR(PICTURES)
    files = {}
    for by in KINDS:
        for loop, roles in (("whole", WHOLE), ("stepped", STEPPED)):
            name = f"{by}_{loop}"
            shutil.copy(small_captioners.file(by, roles), tmp_path / f"{name}.tflite")
            model = runtime.load(tmp_path / f"{name}.tflite")
            answers = []
            for prompt in PROMPTS:
                inputs = {"pixels": pixels, "target": [prompt] * len(pixels)}
                tokens = model.generate(inputs).tokens
                texts = model.caption(PICTURES, prompt)
                assert tokens.shape[1] == LENGTH and len(np.unique(tokens, axis=0)) > 3
                asked = None if prompt == [START] else prompt
                answers.append({"prompt": asked, "tokens": tokens.tolist(), "texts": texts})
            files[name] = {"stepped": loop == "stepped", "answers": answers}
    for loop, roles in (("whole", WHOLE), ("stepped", STEPPED)):  # a picture inside a text
        name = f"inside_{loop}"
        shutil.copy(small_answerer.file(roles), tmp_path / f"{name}.tflite")
        model = runtime.load(tmp_path / f"{name}.tflite")
        seen = small_answerer.PROCESSOR(PICTURES)
        answers = []
        for prompt in (small_answerer.QUESTION, small_answerer.IDS):
            tokens = model.generate({"pixels": seen, "target": [small_answerer.IDS] * len(seen)})
            texts = model.caption(PICTURES, prompt)
            answers.append({"prompt": prompt, "tokens": tokens.tokens.tolist(), "texts": texts})
        files[name] = {"stepped": loop == "stepped", "answers": answers}
    for loop, roles in (("whole", WHOLE), ("stepped", STEPPED)):  # as tiles inside a text
        name = f"tiles_{loop}"
        shutil.copy(small_smolvlm.file(roles), tmp_path / f"{name}.tflite")
        model = runtime.load(tmp_path / f"{name}.tflite")
        processor, reader = small_smolvlm.PROCESSOR, small_smolvlm.tokenizer()
        texts = model.caption(PICTURES, small_smolvlm.QUESTION)
        asked = processor.expand(
            small_smolvlm.TEMPLATE.prompt(small_smolvlm.QUESTION), PICTURES, small_smolvlm.FEATURES
        )
        prompts = [reader.encode(x).ids for x in asked]
        tokens = [
            model.generate({"pixels": processor(x), "target": [ids]}).tokens[0].tolist()
            for x, ids in zip(PICTURES, prompts, strict=True)
        ]
        answers = [{"prompt": small_smolvlm.QUESTION, "tokens": tokens, "texts": texts}]
        files[name] = {"stepped": loop == "stepped", "answers": answers}
    model = gemma3(tmp_path / "joint_whole.tflite")  # inside a chat template
    texts = model.caption(PICTURES, "four")
    target = [[2, *[small_answerer.IMAGE] * 4, WORDS.index("four"), 3]] * len(PICTURES)
    tokens = model.generate({"pixels": SMALL(PICTURES), "target": target}).tokens.tolist()
    assert len(np.unique(tokens, axis=0)) > 3
    answers = [{"prompt": "four", "tokens": tokens, "texts": texts}]
    files["joint_whole"] = {"stepped": False, "answers": answers}
    page = (tmp_path / "prefix_stepped.tflite", tmp_path / "prefix_page")
    write_page(*page, packages=WEB / "node_modules")
    expected = {"files": files, "pictures": names}
    run_in_browser("test:captions", tmp_path, expected, SCREENSHOTS=tmp_path)
    assert (tmp_path / "caption.png").stat().st_size > 10_000
