"""Drawing in headless Chromium: model.js and drawing.html draw Python's codes and pixels."""

import shutil

import numpy as np
import pytest
import small_drawing
from web_pages import need_browser, run_in_browser

from keras_tfm.runtime import Sampler, load

pytest.importorskip("PIL.Image")
TEXTS = ["four nine", "three five", "two", "three six"]
BEST = Sampler(temperature=0)


@pytest.mark.slow
@pytest.mark.browser
def test_codes_pixels_and_scores_are_those_of_python(tmp_path):
    """Also a screenshot, drawing.png, in the test's folder."""
    need_browser()
    files = {
        "sampled": small_drawing.file(),
        "row": small_drawing.file(("decode",), 1),
        "whole": small_drawing.file(small_drawing.GREEDY, 1, 1.0),
        "judged": small_drawing.judged_file(),
    }
    for name, path in files.items():
        shutil.copy(path, tmp_path / f"{name}.tflite")
    model, judge = load(files["sampled"]), load(files["judged"])
    drawn, scores = [], []
    for text in TEXTS:
        for guidance in (1.0, 3.0, -3.0, 10.0):
            (found,) = model.draw(text, guidance=guidance, sampler=BEST, judge=judge)
            codes, pixels = found.codes.tolist(), np.asarray(found.picture).ravel().tolist()
            drawn.append({"text": text, "guidance": guidance, "codes": codes, "pixels": pixels})
            scores.append({"text": text, "codes": codes, "score": found.score})
    assert len({str(x["codes"]) for x in drawn}) > 9
    assert np.ptp([x["score"] for x in scores]) > 0.01
    expected = {"drawn": drawn, "scores": scores}
    run_in_browser("test:drawing", tmp_path, expected, SCREENSHOTS=tmp_path)
    assert (tmp_path / "drawing.png").stat().st_size > 10_000
