"""The command line: what it prints, where, and with which exit code."""

import codecs
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from small_exports import SOURCE_LENGTH, new_path, small, small_file, small_tokens
from small_models import SOURCES, START, randomize
from small_tokenizers import END, source_words, words

import keras_tfm
from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import Beam, Sample
from keras_tfm.optional_package import install_command
from keras_tfm.version import __version__

HUGGING_FACE = Path(__file__).parent / "parity" / "huggingface"
ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
SIZES = ["--lengths", str(SOURCE_LENGTH), "--max-length", "9", "--start", str(START)]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "small.keras"
    small().save(path)
    return path


@pytest.fixture(scope="module")
def file_path():
    return small_file().path


@pytest.mark.default
def test_export_verifies_reports_and_tells_each_step(run, model_path, tmp_path):
    code, out, err = run(
        *("export", model_path, tmp_path / "small.tflite", "--quantize", "int8"),
        *("--signatures", "generate,predict", *SIZES, "--end", "2"),
    )
    assert code == 0
    assert "small.tflite: " in out and "int8" in out and "against Keras" in out
    for step in ("tracing generate, predict", "converting", "comparing predict with small"):
        assert step in err
    manifest = runtime.load(tmp_path / "small.tflite").manifest
    assert manifest["quantization"] == "int8"
    assert manifest["signatures"]["generate"]["end_id"] == 2


def test_export_replaces_no_model(run, model_path, tmp_path):
    """Not its own argument either, whose ending is another one."""
    path = tmp_path / "small.keras"
    path.write_bytes(model_path.read_bytes())
    code, out, err = run("export", path, path, *SIZES, "--no-verify", "--force")
    assert (code, out) == (2, "") and "must end in .tflite or .litertlm, got" in err
    assert path.read_bytes() == model_path.read_bytes()
    other = tmp_path / "other.tflite"
    other.write_bytes(path.read_bytes())
    code, out, err = run("export", path, other, *SIZES, "--no-verify")
    assert (code, out) == (1, "")
    assert "it exists and is not an export of keras_tfm" in err and "--force" in err
    assert other.read_bytes() == model_path.read_bytes()
    code, _, _ = run("export", path, other, *SIZES, "--no-verify", "--force")
    assert code == 0 and runtime.load(other).signatures.keys() == {"generate"}


def test_export_takes_the_other_options(run, model_path, tmp_path):
    path = tmp_path / "small.tflite"
    arguments = [
        "--signatures",
        "generate, predict",
        "--lengths",
        "3",
        *SIZES[2:],
        "--batch-size",
        "2",
    ]
    beam = ["--beam", "3", "--length-penalty", "1", "--hypotheses", "2", "--target", "target"]
    code, out, _ = run("export", model_path, path, *arguments, *beam, "--no-verify", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["verification"] is None
    generate = report["manifest"]["signatures"]["generate"]
    assert generate["inputs"]["source"]["shape"] == [2, 3]
    assert generate["outputs"]["tokens"]["shape"] == [2, 2, 9]
    assert generate["strategy"] == {
        "name": "Beam",
        "size": 3,
        "length_penalty": 1.0,
        "hypotheses": 2,
        "early_stopping": False,
    }
    assert run("verify", model_path, path)[0] == 0  # by the strategy that the file tells


def test_export_of_an_integer_file_reads_its_data(run, tmp_path):
    x = keras.Input((4,), name="x")
    keras.Model(x, keras.layers.Dense(3)(x)).save(tmp_path / "dense.keras")
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).normal(size=(50, 4)))
    code, out, err = run(
        *("export", tmp_path / "dense.keras", tmp_path / "dense.tflite"),
        *("--quantize", "int8_full", "--data", tmp_path / "rows.npz"),
    )
    assert code == 0, err
    assert "int8_full" in out


def test_import(run, tmp_path):
    pytest.importorskip("safetensors")
    folder = HUGGING_FACE / "bert_sequence"
    code, out, err = run("import", folder, tmp_path / "bert.keras", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["inputs"] == ["tokens", "segments"]
    assert result["parameters"] == keras_tfm.load_model(tmp_path / "bert.keras").count_params()
    code, out, err = run("import", folder, tmp_path / "bert.keras", "--no-segments")
    assert (code, out) == (1, "") and "bert.keras exists; --force replaces it" in err
    code, out, err = run("import", folder, tmp_path / "bert.keras", "--no-segments", "--force")
    assert code == 0
    assert out.endswith(f"bert.keras: {result['parameters']:,} parameters, inputs tokens\n")
    before = (tmp_path / "bert.keras").read_bytes()
    for arguments, code, message in [
        (
            (folder, tmp_path / "bert.keras", "--architecture", "BertForMaskedLM", "--force"),
            1,
            "missing in the files: cls.predictions",
        ),
        ((tmp_path, tmp_path / "bert.keras", "--force"), 1, "has no config.json"),
        ((folder, tmp_path / "bert.h5"), 2, "must end in .keras"),
        ((folder, tmp_path / "missing" / "bert.keras"), 1, "no such folder"),
    ]:
        found, out, err = run("import", *arguments)
        assert (found, out) == (code, "")
        assert message in " ".join(err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["bert.keras"]
    assert (tmp_path / "bert.keras").read_bytes() == before


def test_import_replaces_no_file_of_another_import(run, tmp_path, monkeypatch):
    """Two at once: the one that ends last, too."""
    pytest.importorskip("safetensors")
    path, save = tmp_path / "bert.keras", keras.Model.save

    def save_after_another(model, new):
        path.write_bytes(b"the other")
        save(model, new)

    monkeypatch.setattr(keras.Model, "save", save_after_another)
    code, out, err = run("import", HUGGING_FACE / "bert_sequence", path)
    assert (code, out) == (1, "") and "bert.keras exists; --force replaces it" in err
    assert path.read_bytes() == b"the other" and [*tmp_path.iterdir()] == [path]


def test_import_does_not_load_a_model_that_it_cannot_write(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode, **_: mode != os.W_OK)
    monkeypatch.setattr("keras_tfm.cli.import_command.load_model", None)
    code, out, err = run("import", HUGGING_FACE / "bert_sequence", tmp_path / "bert.keras")
    assert (code, out) == (1, "") and "is not writable" in err


def test_verify(run, model_path, file_path, tmp_path):
    code, out, _ = run("verify", model_path, file_path, "--json")
    assert code == 0
    checks = {check["signature"]: check for check in json.loads(out)["checks"]}
    assert set(checks) == {"generate", "predict"}
    np.savez(tmp_path / "rows.npz", source=SOURCES)
    code, out, _ = run("verify", model_path, file_path, "--inputs", tmp_path / "rows.npz")
    assert code == 0
    assert f"generate             {len(SOURCES)}" in out


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_file_of_another_model(run, file_path, tmp_path, options):
    other = keras.models.clone_model(small())
    randomize(other, 5).save(tmp_path / "other.keras")
    code, out, err = run("verify", tmp_path / "other.keras", file_path, *options)
    assert code == 3
    assert "the file differs from small: " in err
    if options:
        assert json.loads(out)["checks"][0]["relative_error"] > 1e-4
    else:
        assert "against Keras" in out


def test_benchmark(run, file_path):
    arguments = ["--threads", "1", "--seconds", "0.01"]
    code, out, _ = run("benchmark", file_path, *arguments, "--json")
    assert code == 0
    latencies = json.loads(out)["latencies"]
    assert [x["signature"] for x in latencies] == ["generate", "predict"]
    code, out, _ = run("benchmark", file_path, *arguments)
    assert code == 0
    assert "tokens/s" in out


def test_inspect(run, file_path):
    code, out, _ = run("inspect", file_path)
    assert code == 0
    for text in (
        "generate(source (1, 5) int32)",
        "encoder_0 ",
        "WHILE 1",
        "sha256: ",
        "while_body",
    ):
        assert text in out
    assert "encoder_0/" not in out
    assert "encoder_0/self_attention/" in run("inspect", file_path, "--depth", 9)[1]
    layers = json.loads(run("inspect", file_path, "--json")[1])["manifest"]["layers"]
    weights = sum(weight.numpy().nbytes for weight in small().weights)
    assert 0.9 * weights < sum(layers.values()) < 1.5 * weights


def test_generate(run, file_path):
    rows = [",".join(map(str, row)) for row in SOURCES]
    expected = [",".join(map(str, row)) for row in small_tokens()[: len(rows)]]
    code, out, _ = run("generate", file_path, "--ids", *rows)
    assert code == 0
    assert out.splitlines() == expected
    code, out, _ = run("generate", file_path, "--ids", "--json", rows[0])
    assert json.loads(out) == {"input": rows[0], "output": small_tokens()[0].tolist()}


@pytest.fixture(scope="module")
def beam_path():
    """A file of three hypotheses, with tokenizers."""
    report = export_tflite(
        small(seed=6),
        new_path(),
        ["generate"],
        source_length=SOURCE_LENGTH,
        max_length=9,
        start_id=START,
        end_id=END,
        strategy=Beam(3, hypotheses=3),
        tokenizer=source_words(),
        detokenizer=words(),
        verify=False,
    )
    return report.path


def test_generate_several_hypotheses(run, beam_path):
    text = "three four five"
    texts = runtime.load(beam_path).generate_text(text)
    code, out, err = run("generate", beam_path, text)
    assert code == 0, err
    assert out.splitlines() == [f"{x.text}\t{x.score:.6g}" for x in texts]
    code, out, _ = run("generate", beam_path, "--json", text)
    answer = [{"text": x.text, "score": x.score} for x in texts]
    assert json.loads(out) == {"input": text, "output": answer}


def test_generate_ids_of_several_hypotheses(run, beam_path):
    (tokens,), (scores,) = runtime.load(beam_path).generate([3, 4, 5])
    pairs = list(zip(tokens.tolist(), scores.tolist(), strict=True))
    code, out, err = run("generate", beam_path, "--ids", "3,4,5")
    assert code == 0, err
    assert out.splitlines() == [f"{','.join(map(str, row))}\t{score:.6g}" for row, score in pairs]
    out = run("generate", beam_path, "--ids", "--json", "3,4,5")[1]
    assert json.loads(out)["output"] == [{"ids": row, "score": score} for row, score in pairs]


@pytest.fixture
def stdin(monkeypatch):
    """Sets the lines of standard input."""

    def lines(*rows):
        content = b"".join(row if isinstance(row, bytes) else row.encode() + b"\n" for row in rows)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))

    return lines


def test_a_bad_line_does_not_end_a_batch(run, file_path, stdin):
    stdin("3,4,5,6,7", "three", b"\xff\xfe\n", "99", "", "8,9,10\r")
    code, out, err = run("generate", file_path, "--ids")
    assert code == 1
    assert out.splitlines() == [",".join(map(str, small_tokens()[i])) for i in (0, 1)]
    for line in (
        "keras-tfm: line 2: expected ids separated by commas, such as 3,4,5, got 'three'",
        "keras-tfm: line 3: 'utf-8' codec can't decode",
        "keras-tfm: line 4: source: ids must be in 0..10, got 99..99",
        "keras-tfm: line 5: expected ids",
        "keras-tfm: 4 of 6 rows failed",
    ):
        assert line in err
    assert "line 1" not in err and "line 6" not in err


def test_a_byte_order_mark_is_no_part_of_the_first_line(run, file_path, stdin):
    stdin(codecs.BOM_UTF8 + b"3,4,5,6,7\r\n", "8,9,10")
    code, out, _ = run("generate", file_path, "--ids")
    assert code == 0
    assert out.splitlines() == [",".join(map(str, small_tokens()[i])) for i in (0, 1)]


def test_no_lines_are_no_error(run, file_path, stdin):
    stdin()
    assert run("generate", file_path, "--ids")[:2] == (0, "")


def test_the_version(run):
    assert run("--version") == (0, f"keras-tfm {__version__}\n", "")


@pytest.fixture(scope="module")
def classifier_path():
    """A masked average and three classes, with a tokenizer; NaN for a text without a token."""
    keras.utils.set_random_seed(3)
    x = keras.Input((None,), dtype="int32", name="source")
    embedded = keras_tfm.layers.TokenEmbedding(11, 4, mask_zero=True)(x)
    y = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(embedded))
    options = {"source_length": SOURCE_LENGTH, "tokenizer": source_words(), "verify": False}
    return export_tflite(keras.Model(x, y), new_path(), **options).path


def test_predict_text(run, classifier_path, stdin):
    texts = ["two three", "four"]
    outputs = runtime.load(classifier_path).predict_text(texts)["output"]
    best = outputs.argmax(-1)
    code, out, err = run("predict", classifier_path, *texts)
    assert code == 0, err
    assert out.splitlines() == [f"{i}\t{row[i]:.6g}" for i, row in zip(best, outputs, strict=True)]
    stdin(texts[0], "", texts[1])
    code, out, err = run("predict", classifier_path, "--labels", "bad, fair, good")
    assert code == 1
    names = [["bad", "fair", "good"][i] for i in best]
    assert [line.split("\t")[0] for line in out.splitlines()] == names
    assert "line 2: source: row 0 is empty or only padding" in err
    code, out, _ = run("predict", classifier_path, "--json", texts[1])
    answer = json.loads(out)
    assert answer["input"] == texts[1]
    np.testing.assert_allclose(answer["output"]["output"], outputs[1], rtol=1e-6)


def test_an_argument_is_one_row(run, classifier_path):
    """Rows after the first would be lost."""
    code, out, err = run("predict", classifier_path, "[[3, 4], [5]]", "[[3, 4]]", "--from-json")
    assert code == 1
    assert "argument 1: expected one row, got 2" in err
    assert out == run("predict", classifier_path, "[3, 4]", "--from-json")[1]


@pytest.mark.parametrize("command", [["generate", "--ids"], ["predict", "--from-json"]])
def test_closed_standard_input(run, file_path, command, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # Python's, in a process without one
    code, out, err = run(command[0], file_path, *command[1:])
    assert (code, out) == (1, "")
    assert "expected lines on standard input, which is closed" in err


def test_predict_json(run, file_path, classifier_path, stdin):
    row = {"source": [3, 4], "target": [1, 2]}
    expected = runtime.load(file_path).predict(row)["output"][0]
    stdin(json.dumps(row), "{", "3", json.dumps({"source": [99], "target": [1]}), json.dumps(row))
    code, out, err = run("predict", file_path, "--from-json", "--json")
    assert code == 1
    answers = [json.loads(line) for line in out.splitlines()]
    assert [x["input"] for x in answers] == [row, row]
    np.testing.assert_array_equal(np.float32(answers[0]["output"]["output"]), expected)
    for line in (
        "line 2: expected JSON, got '{' (",
        "line 3: expected a JSON object, array or string, got '3'",
        "line 4: source: ids must be in 0..10",
        "3 of 5 rows failed",
    ):
        assert line in err
    # One class per token; texts in JSON.
    code, out, _ = run("predict", file_path, "--from-json", json.dumps(row))
    assert out.split() == [str(i) for i in expected.argmax(-1)]
    text = json.dumps({"source": "two three"})
    by_text = run("predict", classifier_path, "--from-json", text, "[2, 3]", '"two three"')[1]
    assert len(set(by_text.splitlines())) == 1


def test_custom_classes(run, tmp_path, monkeypatch):
    """A class in a module of the current folder, without a decorator."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_layers.py").write_text(
        "import keras\nclass Doubled(keras.layers.Layer):\n"
        "    def call(self, x):\n        return x + x\n"
    )
    script = "import keras, own_layers; x = keras.Input((4,), name='x')\n"
    script += "keras.Model(x, own_layers.Doubled()(x)).save('model.keras')"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    code, _, err = run("export", "model.keras", "x.tflite")
    assert code == 1 and "name it with --custom own_layers:Doubled" in " ".join(err.split())
    code, _, err = run("export", "model.keras", "x.tflite", "--custom", "own_layers:Doubled")
    assert code == 0, err
    result = runtime.load("x.tflite").predict([[1, 2, 3, 4]])["output"]
    np.testing.assert_array_equal(result, [[2, 4, 6, 8]])
    assert run("verify", "model.keras", "x.tflite", "--custom", "own_layers:Doubled")[0] == 0


def test_a_file_that_no_export_of_the_model_can_be(run, file_path, tmp_path):
    x = keras.Input((4,), name="x")
    keras.Model(x, keras.layers.Dense(3)(x), name="dense").save(tmp_path / "dense.keras")
    code, out, err = run("verify", tmp_path / "dense.keras", file_path)
    assert (code, out) == (1, "")
    assert "is not an export of dense: the model has no input 'source', 'target'" in err


def test_standard_error_holds_no_log_of_tensorflow_or_litert(file_path):
    command = [sys.executable, "-m", "keras_tfm.cli"]
    done = subprocess.run(
        [*command, "generate", file_path, "--ids", "3"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{START},")


def test_a_pipe_of_another_encoding_gets_utf_8(classifier_path):
    labels = "猫,größe,😀"
    command = [sys.executable, "-m", "keras_tfm.cli", "predict", classifier_path, "two"]
    done = subprocess.run(
        [*command, "--labels", labels], capture_output=True, env=os.environ | ASCII
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().split("\t")[0] in labels.split(",")


def test_an_interrupt(run, file_path, monkeypatch):
    def load(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "load", load)
    assert run("generate", file_path, "--ids", "3")[0] == 130


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["export", "MODEL", "x.tflite", *SIZES, "--beam", "0"], 2, "Invalid value for '--beam'"),
        (
            ["export", "MODEL", "x.tflite", *SIZES, "--hypotheses", "2"],
            2,
            "Invalid value for '--hypotheses': 2 must be at most --beam, got 1",
        ),
        (["inspect", "nothing.tflite"], 1, "no such file: nothing.tflite"),
        (["inspect", "MODEL"], 1, "is not a .tflite file"),
        (["export", "nothing.keras", "x.tflite"], 1, "no such file: nothing.keras"),
        (["export", "MODEL", "x.tflite", *SIZES[:-1], "99"], 1, "--start must be in 0..12, got 99"),
        (["export", "MODEL", "x.tflite", "--signatures", "generate"], 1, "needs --max-length, got"),
        (["export", "MODEL", "x.tflite", *SIZES, "--batch-size", "0"], 2, "for '--batch-size'"),
        (
            ["export", "MODEL", "x.onnx", *SIZES],
            2,
            "for 'OUTPUT': must end in .tflite or .litertlm",
        ),
        (["export", "MODEL", "x", "--format", "tflite"], 2, "for 'OUTPUT': must end in .tflite"),
        (
            ["export", "MODEL", "x.tflite", "--lengths", "0"],
            2,
            "'--lengths': expected integers from",
        ),
        (["export", "MODEL", "x.tflite", "--lengths", "source=0"], 2, "integers from 1 to"),
        (["export", "MODEL", "x.tflite", "--prompt-lengths", "4,0"], 2, "integers from 1 to"),
        (["export", "MODEL", "x.tflite", *SIZES[:-1], "-1"], 2, "Invalid value for '--start'"),
        (
            ["export", "MODEL", "x.tflite", "--max-length", "0"],
            2,
            "Invalid value for '--max-length'",
        ),
        (
            ["export", "MODEL", "x.tflite", *SIZES, "--end", "-2"],
            2,
            "for '--end': expected integers",
        ),
        (
            ["export", "MODEL", "x.tflite", "--signatures", "predict,grow"],
            2,
            "for '--signatures': expected some of predict, generate, encode",
        ),
        (["export", "MODEL", "x.tflite", *SIZES, "--end", "two"], 2, "for '--end': expected int"),
        (
            ["export", "MODEL", "x.tflite", "--inputs", "no.npz"],
            1,
            "--inputs: no such file: no.npz",
        ),
        (["export", "MODEL", "x.tflite", "--inputs", "MODEL"], 1, "must be an .npz file of arrays"),
        (["export", "MODEL", "missing/x.tflite", *SIZES], 1, "missing"),
        (["export", "MODEL", "x.tflite", "--lengths", "five"], 2, "for '--lengths': expected int"),
        (["export", "MODEL", "x.tflite", "--quantize", "int9"], 2, "int9"),
        (
            ["benchmark", "FILE", "--threads", "0"],
            2,
            "for '--threads': expected integers from 1 to",
        ),
        (["benchmark", "FILE", "--threads", "1,9999999"], 2, "for '--threads': expected integers"),
        (["benchmark", "FILE", "--seconds", "-1"], 2, "for '--seconds': expected a number above 0"),
        (["benchmark", "FILE", "--seconds", "0"], 2, "for '--seconds': expected a number above 0"),
        (["benchmark", "FILE", "--threads", "x"], 2, "Invalid value for '--threads': expected int"),
        (["generate", "FILE", "--ids", "--threads", "1000000", "3"], 2, "for '--threads'"),
        (["predict", "FILE", "hello"], 1, "has no tokenizer: export it with --tokenizer, or pass"),
        (["predict", "FILE", "--from-json", "--labels", "a,b", "[3]"], 2, "for '--labels'"),
        (["verify", "MODEL", "FILE", "--tolerance", "-1"], 2, "Invalid value for '--tolerance'"),
        (["verify", "MODEL", "FILE", "--tolerance", "nan"], 2, "Invalid value for '--tolerance'"),
        (["verify", "MODEL", "FILE", "--custom", "json"], 2, "expected module:Class, got 'json'"),
        (["verify", "MODEL", "FILE", "--custom", "absent:A"], 2, "there is no module 'absent'"),
        (["verify", "MODEL", "FILE", "--custom", "json:A"], 2, "'json' has no class 'A'"),
        (["generate", "FILE", "hello"], 1, "has no tokenizer"),
        (["chat", "FILE", "--stop", ""], 1, "--stop must be texts of at least one character"),
        (["generate", "FILE", "--ids", "3,4,5,6,7,8"], 1, "source has 6 ids"),
        (["generate", "FILE", "--ids", "--stream", "3"], 2, "--stream"),
        (["verify", "MODEL", "FILE", "--tolerance", "1e-12"], 3, "at most 1e-12"),
        (["grow"], 2, "grow"),
    ],
)
def test_what_is_refused(
    run, model_path, file_path, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    names = {"MODEL": model_path, "FILE": file_path}
    actual, out, err = run(*(names.get(argument, argument) for argument in arguments))
    assert actual == code
    assert message in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_a_keras_file_with_code_in_it_is_refused(run, tmp_path):
    x = keras.Input((4,))
    keras.Model(x, keras.layers.Lambda(lambda x: 2 * x)(x)).save(tmp_path / "lambda.keras")
    code, _, err = run("export", tmp_path / "lambda.keras", tmp_path / "out.tflite")
    assert code == 1
    assert "Lambda" in err or "lambda" in err
    assert not (tmp_path / "out.tflite").exists()


def test_a_device_needs_neither_keras_nor_tensorflow(file_path):
    commands = [
        ["generate", str(file_path), "--ids", "3,4,5"],
        ["inspect", str(file_path)],
        ["benchmark", str(file_path), "--threads", "1", "--seconds", "0.01"],
    ]
    code = (
        "import sys\n"
        "for name in ('keras', 'tensorflow', 'torch', 'jax'): sys.modules[name] = None\n"
        "from keras_tfm import cli\n"
        f"for command in {commands}:\n"
        "    sys.argv = ['keras-tfm', *command]\n"
        "    try: cli.main()\n"
        "    except SystemExit as ended: assert not ended.code\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{START},")
    assert "tokens/s" in done.stdout


def test_a_missing_extra_is_named():
    code = "import sys; sys.modules['typer'] = None\nfrom keras_tfm import cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    command = install_command("typer", "rich")
    assert done.stderr.strip() == f"keras-tfm needs typer and rich: {command}"


def test_it_is_installed():
    command = Path(sys.executable).parent / "keras-tfm"
    done = subprocess.run([command, "--help"], capture_output=True, text=True)
    for name in ("export", "verify", "benchmark", "inspect", "generate", "predict", "import"):
        assert name in done.stdout


# chat


@pytest.fixture(scope="module")
def writer_path(tmp_path_factory):
    from small_tokenizers import byte_pairs
    from small_writers import story

    path = tmp_path_factory.mktemp("chat") / "writer.tflite"
    template = runtime.ChatTemplate("u:", "|a:", "|", ("s:", "|u:"))
    options = {"tokenizer": byte_pairs(), "chat_template": template, "verify": False}
    options |= {"prompt_length": 8, "max_length": 60, "end_id": 2}
    options["strategy"] = Sample(0.6, top_k=50)
    export_tflite(story(), path, ["prefill", "decode"], **options)
    return path


@pytest.fixture
def typed(monkeypatch, run):
    """Runs a command with lines on standard input."""

    def command(text, *arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run(*arguments)

    return command


def answers_of(path, *prompts, count=5, **options):
    """What a session answers, by hand."""
    session, answers = runtime.load(path).session(), []
    for prompt in prompts:
        session.append(prompt)
        answers.append(session.generate(count, runtime.Sampler(**options)).text)
    return answers


def test_chat_answers_line_by_line_in_the_chat_template(typed, writer_path):
    options = ["--max-tokens", 5, "--temperature", 0]
    code, out, err = typed("hello\n\nworld\n", "chat", writer_path, *options)
    answers = answers_of(writer_path, "u:hello|a:", "|world|a:", temperature=0)
    assert (code, out) == (0, "".join(f"{x}\n" for x in answers))
    assert err.count(" tokens, ") == 2 and " per second; " in err and " more fit]" in err


def test_chat_samples_with_a_seed_and_a_system_message(typed, writer_path):
    """What the options leave open is the file's: temperature and top k."""
    options = ["--seed", 3, "--top-p", 0.9, "--min-p", 0.01]
    command = ["chat", writer_path, *options, "--max-tokens", 5, "--system", "hi"]
    code, out, _ = typed("hello\n", *command, "--repetition-penalty", 1.1)
    sampled = {"seed": 3, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1}
    (answer,) = answers_of(writer_path, "s:hi|u:hello|a:", temperature=0.6, **sampled)
    assert (code, out) == (0, f"{answer}\n")


def test_chat_goes_back_and_begins_anew(typed, writer_path):
    options = ["--max-tokens", 5, "--temperature", 0]
    _, out, _ = typed(
        "hello\nworld\n/undo\n/undo\nhello\n/new\nhello\n", "chat", writer_path, *options
    )
    answers = answers_of(writer_path, "u:hello|a:", "|world|a:", temperature=0)
    assert out == "".join(f"{answers[i]}\n" for i in (0, 1, 0, 0))


def test_chat_goes_on_after_an_error(typed, writer_path):
    long = "hello " * 60
    code, out, err = typed(
        f"/undo\n{long}\nhello\n", "chat", writer_path, "--max-tokens", 5, "--temperature", 0
    )
    assert code == 1
    assert out == "".join(f"{x}\n" for x in answers_of(writer_path, "u:hello|a:", temperature=0))
    assert "keras-tfm: there is no message to undo\n" in err
    assert "the session has 0 tokens of at most 60, got " in err and "Traceback" not in err


def test_ctrl_c_stops_an_answer_and_keeps_the_session(typed, writer_path, monkeypatch):
    stream, calls = runtime.Session.stream, []

    def interrupted(session, *arguments, **options):
        for piece in stream(session, *arguments, **options):
            yield piece
            if not calls:
                calls.append(session.tokens)
                raise KeyboardInterrupt

    monkeypatch.setattr(runtime.Session, "stream", interrupted)
    options = ["--max-tokens", 12, "--temperature", 0]
    code, out, err = typed("hello\nworld\n", "chat", writer_path, *options)
    session = runtime.load(writer_path).session()
    session.append("u:hello|a:")
    first = next(session.stream(12, runtime.Sampler(temperature=0)))
    np.testing.assert_array_equal(session.tokens, calls[0])
    session.append("|world|a:")
    second = session.generate(12, runtime.Sampler(temperature=0)).text
    assert (code, out) == (0, f"{first}\n{second}\n")
    assert err.count(", stopped, ") == 1


def test_chat_without_a_template_continues_the_text(typed, tmp_path):
    from small_writers import written

    options = ["--max-tokens", 5, "--temperature", 0]
    code, out, _ = typed("hello\nworld\n", "chat", written(), *options)
    answers = answers_of(written(), "hello", "world", temperature=0)
    assert (code, out) == (0, "".join(f"{x}\n" for x in answers))
    _, out, _ = typed("hello\n", "chat", written(), "--max-tokens", 5, "--seed", 3)
    assert out == f"{answers_of(written(), 'hello', temperature=0.7, seed=3)[0]}\n"
    code, out, err = typed("hello\n", "chat", written(), "--system", "hi")
    assert (code, out) == (1, "")
    assert "has no chat template with a system message: --system" in err


def test_chat_needs_decode_and_a_tokenizer(typed, file_path):
    from small_writers import written

    code, _, err = typed("hello\n", "chat", file_path)
    assert code == 1 and "has no signature 'decode'" in err
    assert "for chats, export it with --signatures prefill,decode" in err
    code, _, err = typed("hello\n", "chat", written(tokenizer=None))
    assert code == 1 and "has no tokenizer: export it with --tokenizer" in err
    code, _, err = typed("hello\n", "chat", written(), "--top-p", 2)
    assert code == 1 and "--top-p must be within 0 and 1, got 2" in err


def test_true_is_no_id(run, tmp_path):
    """NumPy would take it for 1."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    model = keras.Model(tokens, keras.layers.Embedding(7, 3)(tokens))
    path = tmp_path / "ids.tflite"
    export_tflite(model, path, source_length=2, verify=False)
    lines = ["[true, 4]", '{"tokens": [[1, false]]}', "[1, 4]"]
    code, out, err = run("predict", path, "--from-json", lines=lines)
    assert code == 1 and len(out.splitlines()) == 1
    for line in (1, 2):
        assert f"line {line}: expected numbers for 'tokens', got true or false" in err


def test_true_is_a_value_of_a_mask(run, tmp_path):
    mask = keras.Input((2,), dtype="bool", name="mask")
    model = keras.Model(mask, keras.ops.cast(mask, "float32"))
    path = tmp_path / "mask.tflite"
    export_tflite(model, path, verify=False)
    code, out, err = run("predict", path, "--from-json", "--json", lines=["[true, false]"])
    assert code == 0, err
    assert list(json.loads(out)["output"].values()) == [[1.0, 0.0]]
