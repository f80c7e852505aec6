"""`keras-tfm predict` between pictures and words: files that write captions, and that draw."""

import json
import re

import numpy as np
import pytest
import small_captioners
import small_drawing
from execution import tensorflow_only
from small_captioners import PICTURES, STEPPED, WHOLE

from keras_tfm import runtime

pytest.importorskip("typer")
Image = pytest.importorskip("PIL.Image")
pytestmark = tensorflow_only
TEXTS = ["two four", "nine", "ten six six"]


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{i}.png" for i in range(len(PICTURES))]
    for path, pixels in zip(paths, PICTURES, strict=True):
        Image.fromarray(pixels).save(path)
    return paths


# --- Captions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "roles"),
    [
        ("cross-attention", WHOLE),
        ("prefix", STEPPED),
        pytest.param("cross-attention", STEPPED, marks=pytest.mark.slow),
        pytest.param("prefix", WHOLE, marks=pytest.mark.slow),
    ],
)
def test_a_picture_s_caption_is_that_of_keras(run, paths, by, roles):
    file, expected = small_captioners.file(by, roles), small_captioners.captions(by)
    assert len(set(expected)) == len(PICTURES) and all(expected)
    assert run("predict", file, paths[0]) == (0, f"{expected[0]}\n", "")
    lines = [f"{path}\t{text}" for path, text in zip(paths, expected, strict=True)]
    for arguments, given in ((paths, ()), ((), paths)):
        code, out, err = run("predict", file, *arguments, lines=given)
        assert (code, out.splitlines(), err) == (0, lines, "")
    out = run("predict", file, paths[1], "--json")[1]
    assert json.loads(out) == {"input": str(paths[1]), "output": expected[1]}


def test_a_caption_continues_a_prompt(run, paths):
    prompt = (1, 5, 9)
    expected = small_captioners.captions("prefix", prompt)
    assert expected != small_captioners.captions("prefix")
    file = small_captioners.file("prefix", STEPPED)
    # As a text, the start token stands before it.
    for given in ("1,5,9", small_captioners.text_of(prompt[1:])):
        code, out, err = run("predict", file, *paths, "--prompt", given)
        assert code == 0, err
        assert [line.split("\t")[1] for line in out.splitlines()] == expected


def test_a_caption_is_drawn_into_a_copy(run, paths, tmp_path):
    file = small_captioners.file("prefix", STEPPED)
    assert run("predict", file, paths[0], "--draw", "drawn.png")[0] == 0
    drawn = np.asarray(Image.open(tmp_path / "drawn.png")).astype(int)
    plain = Image.open(paths[0]).resize((495, 330), Image.Resampling.NEAREST)  # 11 times
    changed = np.abs(drawn - np.asarray(plain)).max(-1) > 0
    assert changed[:20, :40].mean() > 0.9 and not changed[40:].any()


def test_what_cannot_be_described_does_not_end_a_batch(run, paths):
    file = small_captioners.file("prefix", STEPPED)
    code, out, err = run("predict", file, "two four", paths[0], "none.png")
    assert code == 1
    assert out == f"{paths[0]}\t{small_captioners.captions('prefix')[0]}\n"
    assert "argument 1: no such picture: two four" in err
    assert "argument 3: no such picture: none.png" in err and "2 of 3 rows failed" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "a,b"], "'--labels': it is for classes and objects, and the file writes cap"),
        (["--top", "2"], "'--top': it is for classes and objects"),
        (["--threshold", "0.5"], "'--threshold': it is for classes and objects"),
        (["--output", "x.png"], "'--output': it is for files that draw"),
        (["--candidates", "2"], "'--candidates': it is for files that draw"),
        (["--force"], "'--force': it is for files that draw"),
        (["--draw", "none/x.png"], "'--draw': no such folder: none"),
    ],
)
def test_options_of_other_files_are_refused(run, paths, options, message):
    code, out, err = run("predict", small_captioners.file("prefix", STEPPED), paths[0], *options)
    assert code == 2 and message in err and out == "", err


# --- Drawing -----------------------------------------------------------------------------------


def pixels_of(drawings):
    return [np.asarray(x.picture).tolist() for x in drawings]


def saved(*paths):
    return [np.asarray(Image.open(path)).tolist() for path in paths]


def best(text, guidance=1.0):
    """What Python draws of the most probable codes."""
    model = runtime.load(small_drawing.file())
    return pixels_of(model.draw(text, guidance=guidance, sampler=runtime.Sampler(temperature=0)))


def test_a_text_is_drawn_into_a_file(run, tmp_path):
    arguments = ("predict", small_drawing.file(), "two four", "-o", "x.png", "--temperature", 0)
    assert run(*arguments) == (0, "x.png\n", "")
    assert saved(tmp_path / "x.png") == best("two four")
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.format == "PNG" and picture.size == (12, 8)
    code, out, err = run(*arguments[:2], "nine", *arguments[3:])
    assert code == 2 and "'--output': x.png exists; --force replaces it" in err and out == ""
    assert saved(tmp_path / "x.png") == best("two four")
    arguments = (*arguments[:2], "nine", *arguments[3:], "--guidance", 3.0, "--force")
    assert run(*arguments) == (0, "x.png\n", "")
    assert saved(tmp_path / "x.png") == best("nine", 3.0) != best("nine")


def test_several_texts_are_drawn_into_a_folder(run, tmp_path):
    (tmp_path / "drawn").mkdir()
    names = [f"drawn/{text.replace(' ', '_')}.png" for text in TEXTS]
    arguments = ("predict", small_drawing.file(), "--output", "drawn", "--temperature", 0)
    code, out, err = run(*arguments, lines=TEXTS)
    assert code == 0, err
    pairs = list(zip(TEXTS, names, strict=True))
    assert out.splitlines() == [f"{text}\t{name}" for text, name in pairs]
    assert saved(*(tmp_path / name for name in names)) == [x for t in TEXTS for x in best(t)]
    code, out, err = run(*arguments, "three", "nine", "two two two two", "Three")
    assert code == 1 and [x.split("\t")[1] for x in out.splitlines()] == [
        "drawn/three.png",
        "drawn/Three.png",
    ]
    assert "argument 2: --output: drawn/nine.png exists; --force replaces it" in err
    assert "argument 3: text 0 must have 1 to 3 tokens, got 4" in err


def test_a_seed_repeats_the_candidates(run, tmp_path):
    sampler = runtime.Sampler(0.7, top_p=0.9, seed=3)
    model = runtime.load(small_drawing.file())
    expected = pixels_of(model.draw("two", candidates=3, guidance=2.0, sampler=sampler))
    options = ("--candidates", 3, "--guidance", 2, "--temperature", 0.7, "--top-p", 0.9)
    arguments = ("predict", small_drawing.file(), "two", "-o", ".", "--json", *options)
    code, out, err = run(*arguments, "--seed", 3)
    assert code == 0, err
    names = [f"two-{i}.png" for i in (1, 2, 3)]
    pictures = [{"picture": name, "score": None} for name in names]
    assert json.loads(out) == {"input": "two", "output": pictures}
    assert saved(*(tmp_path / name for name in names)) == expected
    assert run(*arguments, "--seed", 4, "--force")[0] == 0
    assert saved(*(tmp_path / name for name in names)) != expected


@pytest.mark.parametrize("within", [True, False])
def test_clip_sorts_the_candidates(run, tmp_path, within):
    """The encoders of CLIP are in the file that draws, or in another."""
    judge = small_drawing.judged_file()
    file = judge if within else small_drawing.file()
    drawn = runtime.load(small_drawing.file()).draw(
        "two", candidates=5, judge=runtime.load(judge), sampler=runtime.Sampler(seed=2)
    )
    scores = [x.score for x in drawn]
    assert scores == sorted(scores, reverse=True) and scores[0] > scores[-1] + 1e-3
    options = ("--candidates", 5, "--seed", 2, *(() if within else ("--judge", judge)))
    code, out, err = run("predict", file, "two", "-o", ".", *options)
    assert code == 0, err
    names = [f"two-{i}.png" for i in range(1, 6)]
    pairs = zip(names, scores, strict=True)
    assert out.splitlines() == [f"{name}\t{score:.4f}" for name, score in pairs]
    assert saved(*(tmp_path / name for name in names)) == pixels_of(drawn)
    code, out, err = run("predict", file, "two", "-o", "one.png", *options)  # the best alone
    assert (code, out, err) == (0, f"one.png\t{scores[0]:.4f}\n", "")
    assert saved(tmp_path / "one.png") == pixels_of(drawn[:1])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["two"], 2, "'--output': the file draws: give a .png file, or a folder for several"),
        (["two", "-o", "x.gif"], 2, "'--output': must be a folder or end in .png, "),
        (["two", "-o", "none/x.png"], 2, "'--output': no such folder: none"),
        (["two", "nine", "-o", "x.png"], 2, "'--output': .* it must be an existing folder, got x"),
        (["two", "-o", "x.png", "--candidates", "2"], 2, "'--output': .* an existing folder, got"),
        (["two", "-o", "x.png", "--candidates", "0"], 2, "'--candidates'"),
        (["two", "-o", "x.png", "--seed", "-1"], 2, "'--seed'"),
        (["two", "-o", "x.png", "--temperature", "-1"], 2, "'--temperature'"),
        (["two", "-o", "x.png", "--top-p", "2"], 1, r"--top-p must be within 0 and 1, got 2\.0"),
        (["two", "-o", "x.png", "--judge", "none.tflite"], 2, "'--judge': no such file: none"),
        (["two", "-o", "x.png", "--draw", "y.png"], 2, "'--draw': the file draws: give texts and"),
        (["two", "-o", "x.png", "--labels", "a"], 2, "'--labels': the file draws"),
        (["two", "-o", "x.png", "--from-json"], 2, "'--from-json': the file draws"),
        (["two", "-o", "x.png", "--prompt", "1"], 2, "'--prompt': the file draws"),
        (["PICTURE", "-o", "x.png"], 1, r"expected words to draw, got the picture .*0\.png"),
        (["two two two two", "-o", "x.png"], 1, "text 0 must have 1 to 3 tokens, got 4"),
        ([" ", "-o", "x.png"], 1, "text 0 must have at least one character, got ' '"),
    ],
)
def test_what_is_refused(run, paths, tmp_path, arguments, code, message):
    arguments = [paths[0] if x == "PICTURE" else x for x in arguments]
    found, out, err = run("predict", small_drawing.file(), *arguments)
    assert found == code and re.search(message, err), err
    assert out == "" and list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_saved_leaves_the_earlier_one(tmp_path):
    from keras_tfm.cli.drawing import save

    path = tmp_path / "drawing.png"
    path.write_bytes(b"earlier")

    class Full:
        def save(self, path):
            path.write_bytes(b"half")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        save(Full(), path)
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]
