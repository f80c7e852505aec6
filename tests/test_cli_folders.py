"""The command line with folders of transformers and sentence-transformers, in one step."""

import json
import re
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from keras_weights import randomize
from small_tokenizers import WORDS, words

import keras_tfm
from keras_tfm import checkpoints, models, runtime
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.cli import import_command
from keras_tfm.cli.model_commands import EXPORT_OPTIONS
from keras_tfm.export import export_litertlm, export_tflite, verify
from keras_tfm.export.checkpoints import export_arguments, load_checkpoint
from keras_tfm.generation import (
    Beam,
    Drafted,
    Greedy,
    PromptLookup,
    Sample,
    Strategy,
    generate,
    processors,
)

pytest.importorskip("safetensors")

HUGGING_FACE = Path(__file__).parent / "parity" / "huggingface"
CHAT = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
SIZES = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
# float32, one block.
FLOAT32 = 1e-5


def with_tokenizer(folder, around="", **settings):
    words(around=around).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def sentences(tmp_path):
    """A folder of sentence-transformers, whose texts have at most 7 tokens."""
    folder = tmp_path / "sentences"
    bert = models.bert(len(WORDS), **SIZES, max_length=9)
    checkpoints.save_huggingface(randomize(bert, 3), folder)
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": kind, "path": path} for kind, path in paths.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    prompts = {"prompts": {"query": "six ", "none": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return with_tokenizer(folder, "<start> $A end")


def test_sentence_embeddings(run, sentences, tmp_path):
    code, _, err = run("export", sentences, tmp_path / "x.tflite", "--no-verify")
    assert code == 0, err
    assert "of the folder: its tokenizer; --lengths 7" in err
    file = runtime.load(tmp_path / "x.tflite")
    ids = [[1, 6, 2, 3, 7], [1, 6, 4, 7, 0]]  # "six", the prompt, before each text
    expected = np.asarray(
        checkpoints.load_sentence_transformer(sentences)({"tokens": np.array(ids)})
    )
    np.testing.assert_allclose(file.embed(["two three", "four"]), expected, atol=FLOAT32)
    lines = run("predict", tmp_path / "x.tflite", "two three", "four")[1].splitlines()
    found = [[float(x) for x in line.split(" ")] for line in lines]
    np.testing.assert_allclose(found, expected, atol=1e-5)  # six digits
    given = ("predict", tmp_path / "x.tflite", "six four", "--prompt")
    (line,) = run(*given, "none")[1].splitlines()
    np.testing.assert_allclose([float(x) for x in line.split(" ")], expected[1], atol=1e-5)
    (line,) = run(*given, "none", "--dimensions", 3)[1].splitlines()
    short = expected[1][:3] / np.linalg.norm(expected[1][:3])
    np.testing.assert_allclose([float(x) for x in line.split(" ")], short, atol=1e-5)
    code, _, err = run(*given, "title")
    assert code == 1
    assert "has no prompt 'title', it has ['query', 'none']" in err
    # The file says so, too, and a folder of sentence-transformers keeps its pooling in Keras.
    assert run("verify", sentences, tmp_path / "x.tflite")[0] == 0
    assert run("import", sentences, tmp_path / "x.keras")[0] == 0
    assert keras_tfm.load_model(tmp_path / "x.keras").head.kind == "sentence_embedding"


@pytest.fixture
def chat(tmp_path):
    """A decoder with a chat template, two end tokens, and 131,072 positions."""
    folder = tmp_path / "chat"
    model = models.llama(len(WORDS), **SIZES, max_length=131072)
    checkpoints.save_huggingface(randomize(model, 3), folder, end_id=9)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9], "bos_token_id": 1}')
    return with_tokenizer(folder, "<start> $A", chat_template=CHAT, bos_token="<start>")


def test_a_chat_model(run, chat, tmp_path):
    code, _, err = run(
        "export",
        chat,
        tmp_path / "x.tflite",
        "--max-length",
        20,
        "--no-verify",
        "--tokenizer",
        chat,
    )
    assert code == 0, err
    for text in ("--signatures prefill,decode", "its chat template; --end 7,9"):
        assert text in err
    assert "--max-length" not in err.split("exporting")[0]  # the option's
    file = runtime.load(tmp_path / "x.tflite")
    assert file.signatures["decode"]["end_id"] == [7, 9]
    assert file.chat_prompt("two") == "user two end assistant "
    session = file.session()
    session.append(file.chat_prompt("two"))
    prompt = session.tokens.tolist()
    assert prompt[0] == 1
    answer = session.generate(5, runtime.Sampler(temperature=0)).tokens
    model = checkpoints.load_huggingface(chat)
    tokens = generate(model, [prompt], max_length=len(prompt) + 5, end_id=[7, 9]).tokens[0]
    np.testing.assert_array_equal(answer, np.asarray(tokens)[len(prompt) :][: len(answer)])


def arguments_of(folder, is_litertlm=False, **given):
    """What an export takes from a folder when its options are these."""
    return taken_of(folder, is_litertlm, **given).arguments


def taken_of(folder, is_litertlm=False, **given):
    return export_arguments(load_checkpoint(folder), given, is_litertlm)


def test_the_length_of_a_chat_is_limited_and_said(chat):
    taken = taken_of(chat)
    assert (taken.arguments["max_length"], taken.arguments["prompt_length"]) == (1024, 64)
    said = "--max-length 1024 (of 131072); --prompt-lengths 64"
    assert said in taken.describe(EXPORT_OPTIONS)


def sampled(folder, **fields):
    """Adds fields of sampling to a folder's `generation_config.json`."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_sample": True, **fields}))


def test_what_a_file_has_of_the_search_of_a_folder(chat):
    """LiteRT-LM's sampler has fewer settings than the one here."""
    sampled(chat, temperature=0.6, top_k=20, repetition_penalty=1.1)
    taken = taken_of(chat, is_litertlm=True)
    assert taken.arguments["strategy"] == Sample(0.6, top_k=20)
    said = "its Sample(temperature=0.6, top_k=20); not its processors RepetitionPenalty"
    assert said in taken.describe()
    taken = taken_of(chat)
    penalised = Sample(0.6, top_k=20, processors=[processors.RepetitionPenalty(1.1)])
    assert taken.arguments["strategy"] == penalised
    assert "its Sample(temperature=0.6, top_k=20) with RepetitionPenalty" in taken.describe()
    assert "strategy" not in arguments_of(chat, signatures=["predict"], max_length=9)
    for fields, said in (
        ({"min_p": 0.1}, "not its Sample(temperature=0.6, top_k=20, min_p=0.1)"),
        ({"typical_p": 0.5}, "not its strategy: "),
    ):
        sampled(chat, **fields)
        taken = taken_of(chat, is_litertlm=True)
        assert said in taken.describe() and "strategy" not in taken.arguments


def test_what_ends_a_text_elsewhere_leaves_the_strategy(chat):
    """The tokens before are those of the sampling; an app ends the text, by `stop=`."""
    sampled(chat, temperature=0.6, top_k=20, stop_strings=["User:"], max_time=9)
    for is_litertlm in (False, True):
        taken = taken_of(chat, is_litertlm)
        assert taken.arguments["strategy"] == Sample(0.6, top_k=20)
        assert "not its max_time 9; not its stop_strings ['User:']" in taken.describe()


def test_processors_of_a_search_that_is_not_supported(chat):
    sampled(chat, typical_p=0.5, suppress_tokens=[5])
    taken = taken_of(chat, signatures=["generate"])
    assert taken.arguments["strategy"] == Greedy([processors.SuppressTokens([5])])
    assert "not its strategy: " in taken.describe()
    assert taken.describe().endswith("its processors SuppressTokens")


def test_a_strategy_without_processors_gets_those_of_the_folder(chat):
    """As `generate(num_beams=3)` of transformers does; one with processors is complete."""
    sampled(chat, temperature=0.6, repetition_penalty=1.1, suppress_tokens=[5])
    rules = [processors.RepetitionPenalty(1.1), processors.SuppressTokens([5])]
    loop = {"signatures": ["generate"]}
    draft = PromptLookup()

    class Own(Strategy):
        """Neither a dataclass nor one with an argument for processors."""

    own = Own()
    taken = arguments_of(chat, strategy=own, **loop)["strategy"]
    assert type(taken) is Own and list(taken.processors) == rules and own.processors == ()
    for given, expected in (
        (Greedy(), Greedy(rules)),
        (Beam(3, 0.5), Beam(3, 0.5, processors=rules)),
        (Drafted(draft, 3), Drafted(draft, 3, Greedy(rules))),
    ):
        taken = taken_of(chat, strategy=given, **loop)
        assert taken.arguments["strategy"] == expected
        assert taken.describe().endswith("its processors RepetitionPenalty, SuppressTokens")
    taken = taken_of(chat, strategy=Beam(3, processors=[processors.MinNewTokens(1)]), **loop)
    assert "strategy" not in taken.arguments
    said = "not its processors RepetitionPenalty, SuppressTokens, as strategy has processors"
    assert taken.describe().endswith(said)
    # The runtime's sampler of "decode" has a penalty, and LiteRT-LM's has none.
    taken = taken_of(chat, strategy=Sample(0.1))
    assert taken.arguments["strategy"] == Sample(0.1, processors=rules[:1])
    said = "its processors RepetitionPenalty; not its processors SuppressTokens"
    assert taken.describe().endswith(said)
    for is_litertlm, given in ((True, Sample(0.1)), (False, Greedy())):
        taken = taken_of(chat, is_litertlm, strategy=given)
        assert "strategy" not in taken.arguments
        assert "not its processors RepetitionPenalty, SuppressTokens" in taken.describe()
        assert "Sample" not in taken.describe()
    with pytest.raises(TypeError, match="strategy must be a Strategy such as"):
        export_tflite(chat, chat / "x.tflite", strategy="beam", max_length=9)


def manifest_of(path):
    return replace(runtime.load(path).file.manifest, sha256="")


def test_python_takes_from_a_folder_what_the_command_does(run, chat, sentences, tmp_path):
    for folder in (chat, sentences):
        path = tmp_path / f"{folder.name}.tflite"
        code, _, err = run("export", folder, path, "--no-verify")
        assert code == 0, err
        report = export_tflite(folder, tmp_path / "python.tflite", verify=False)
        assert manifest_of(report.path) == manifest_of(path)
        assert report.notes[-1].startswith("of the folder: ")
    assert "its tokenizer; source_length=[7]" in report.notes[-1]
    assert verify(sentences, tmp_path / "python.tflite").checks


def test_python_takes_the_same_for_litertlm(run, chat, tmp_path):
    pytest.importorskip("litert_lm_builder")
    sampled(chat, temperature=0.6, top_k=20)
    code, _, err = run("export", chat, tmp_path / "x.litertlm", "--max-length", 64, "--no-verify")
    assert code == 0, err
    assert "its Sample(temperature=0.6, top_k=20); --start 1" in err
    export_litertlm(chat, tmp_path / "y.litertlm", max_length=64, verify=False)
    x, y = (np.fromfile(tmp_path / f"{name}.litertlm", "uint8") for name in "xy")
    assert len(x) == len(y) and (x != y).sum() <= 64  # a random identity and the time


def test_a_chat_model_for_litertlm(run, chat, tmp_path):
    """The ending of the output tells the format, the tokenizer the start token."""
    pytest.importorskip("litert_lm_builder")
    code, _, err = run("export", chat, tmp_path / "x.litertlm", "--max-length", 64, "--no-verify")
    assert code == 0, err
    assert "its tokenizer; its chat template; --end 7,9; --start 1" in err
    assert (tmp_path / "x.litertlm").read_bytes()[:8] == b"LITERTLM"


def test_a_template_that_strings_cannot_represent_is_left_out_and_said(chat):
    with_tokenizer(chat, chat_template="{{ messages | length }}", bos_token="<start>")
    taken = taken_of(chat)
    assert "chat_template" not in taken.arguments
    line = taken.describe()
    assert "no chat template: " in line and "cannot be written as strings" in line
    assert "chat_template" not in taken_of(chat, is_litertlm=True).arguments  # omits the message


def test_litert_lm_runs_a_template_that_strings_cannot_represent(chat):
    """Which writes a message by its length."""
    program = "{% for m in messages %}{{ m.content | length }}:{{ m.content }}{% endfor %}"
    with_tokenizer(chat, chat_template=program, bos_token="<start>")
    assert "chat_template" not in taken_of(chat).arguments
    taken = taken_of(chat, is_litertlm=True)
    assert taken.arguments["chat_template"] == checkpoints.load_jinja_template(chat)
    assert "its chat template" in taken.describe()


def test_a_translator():
    """T5 has the start token and the end token of the folder, which has no tokenizer here."""
    taken = taken_of(HUGGING_FACE / "t5")
    assert taken.arguments == {
        "signatures": ["generate"],
        "end_id": [1],
        "start_id": 0,
        "max_length": 128,
        "source_length": [32, 128, 512],
    }
    assert "no tokenizer, which it lacks: the file takes ids" in taken.describe()
    # A GPU delegate runs no loop, and a prompt takes the place of the start token.
    arguments = arguments_of(HUGGING_FACE / "t5", accelerator="gpu", default_prompt=[0, 3])
    assert arguments["signatures"] == ["encode", "decode"] and "start_id" not in arguments


def test_marian_has_two_tokenizers_and_bart_a_forced_first_token(run, tmp_path):
    folder = tmp_path / "bart"
    ids = {"start_id": 7, "end_id": 7, "forced_first_id": 1}
    bart = models.bart(len(WORDS), **SIZES, max_length=9, **ids)
    checkpoints.save_huggingface(bart, folder)
    arguments = arguments_of(with_tokenizer(folder, "<start> $A end"))
    assert arguments["default_prompt"] == [7, 1]
    assert arguments["tokenizer"].keys() == {"source", "target"} and "start_id" not in arguments
    # A prompt tells its length.
    options = ["--prompt", "7,2", "--lengths", 5, "--max-length", 6, "--no-verify"]
    code, _, err = run("export", folder, tmp_path / "x.tflite", *options)
    assert code == 0, err
    assert runtime.load(tmp_path / "x.tflite").signatures["generate"]["default_prompt"] == [7, 2]


def test_a_translator_into_several_languages_needs_a_prompt(tmp_path):
    folder = tmp_path / "m2m"
    translator = models.m2m_100(len(WORDS), **SIZES, max_length=9, start_id=7, end_id=7)
    checkpoints.save_huggingface(translator, folder)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (with_tokenizer(folder) / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"default_prompt must be the ids of the start, 7, and of"):
        arguments_of(folder)
    assert "start_id" not in arguments_of(folder, default_prompt=[7, 3])


@pytest.mark.parametrize(
    ("case", "inputs"),
    [("bert_sequence", {"tokens", "segments"}), ("bert_token", {"tokens"})],
)
def test_segments_are_kept_for_pairs(case, inputs):
    model = load_checkpoint(HUGGING_FACE / case).model
    assert set(model.input) == inputs
    model = load_checkpoint(HUGGING_FACE / case, segments=True).model
    assert set(model.input) == {"tokens", "segments"}


def test_pictures(run, tmp_path):
    """The rule for pictures is the folder's; --images makes the model another size."""
    folder = tmp_path / "vit"
    vit = models.image_classifier(models.vit(8, 4, **SIZES), 3)
    processor = runtime.ImageProcessor((8, 8), resample="bicubic")
    checkpoints.save_huggingface(randomize(vit, 3), folder, image_processor=processor)
    assert arguments_of(folder) == {"images": processor}
    options = ["--no-verify", "--images", "12x8:fit"]
    code, _, err = run("export", folder, tmp_path / "x.tflite", *options)
    assert code == 0, err
    (made,) = runtime.load(tmp_path / "x.tflite").image_processors.values()
    assert made.size == (12, 8)


@pytest.fixture
def speech(tmp_path):
    """A folder of Whisper that suppresses token 5."""
    folder = tmp_path / "whisper"
    sizes = {"num_mels": 4, "max_source_length": 50, "max_length": 9, "start_id": 1, "end_id": 7}
    model = models.whisper(len(WORDS), **SIZES, **sizes, suppressed_ids=[5])
    checkpoints.save_huggingface(randomize(model, 3), folder)
    return with_tokenizer(folder)


def test_speech_has_all_processors_of_a_folder(run, speech, tmp_path):
    """Each once, with beams as in Python; what a file leaves out is said."""
    fields = json.loads((speech / "config.json").read_text())
    fields |= {"begin_suppress_tokens": [7], "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    (speech / "generation_config.json").write_text(json.dumps({**fields, "num_beams": 3}))
    rules = [
        processors.RepetitionPenalty(1.5),
        processors.NoRepeatNGram(2),
        processors.SuppressTokens([5]),
        processors.SuppressTokensAtBegin([7]),
    ]
    names = "RepetitionPenalty, NoRepeatNGram, SuppressTokens, SuppressTokensAtBegin"
    taken = taken_of(speech)
    assert taken.arguments["strategy"] == Greedy(rules)
    assert taken.describe().endswith(f"its processors {names}; not its Beam(size=3)")
    loaded = checkpoints.load_generation_config(speech)["strategy"]
    assert loaded == Beam(3, processors=rules)
    path = tmp_path / "x.tflite"
    code, _, err = run("export", speech, path, "--beam", 2, "--no-verify")
    assert code == 0, err
    assert f"its processors {names}" in err and "not its" not in err
    report = export_tflite(speech, tmp_path / "python.tflite", strategy=Beam(2), verify=False)
    assert f"its processors {names}" in report.notes[-1]
    assert manifest_of(report.path) == manifest_of(path)
    assert arguments_of(speech, strategy=Beam(2))["strategy"] == Beam(2, processors=rules)
    # A search that is not supported leaves the processors.
    (speech / "generation_config.json").write_text(json.dumps({**fields, "guidance_scale": 2}))
    taken = taken_of(speech)
    assert taken.arguments["strategy"] == Greedy(rules)
    assert "not its strategy: " in taken.describe()


def test_speech_in_several_languages_needs_a_prompt(speech):
    folder = speech
    fields = json.loads((folder / "config.json").read_text())
    ids = {"lang_to_id": {"<|en|>": 3}, "task_to_id": {"transcribe": 4}}
    (folder / "generation_config.json").write_text(json.dumps({**fields, **ids}))
    with pytest.raises(ValueError, match=r"default_prompt must be .* such as 1,3,4"):
        arguments_of(folder)
    taken = taken_of(folder, default_prompt=[1, 3, 4])
    assert "source_length" not in taken.arguments
    assert taken.arguments["strategy"] == Greedy([processors.SuppressTokens([5])])
    assert taken.describe().endswith("its processors SuppressTokens")
    # What older folders force, unless a language is to be found, or the newer fields are there.
    for forced, more, prompt in (
        ([[1, 5], [2, 6]], {}, [1, 5, 6]),
        ([[1, 5], [2, 8]], {"no_timestamps_token_id": 8}, [1, 5, 8]),
        ([[1, 5]], {"no_timestamps_token_id": 8}, [1, 5, 8]),
        ([[1, None], [2, 6]], {}, None),
        ([[2, 6]], {}, None),
        ([[1, 5]], {"language": "en"}, None),
    ):
        changed = {**fields, **ids, **more, "forced_decoder_ids": forced}
        (folder / "generation_config.json").write_text(json.dumps(changed))
        if prompt is None:
            with pytest.raises(ValueError, match="default_prompt must be"):
                arguments_of(folder)
        else:
            assert arguments_of(folder)["default_prompt"] == prompt


def test_speech_of_any_length_gets_several(run, tmp_path):
    folder, path = tmp_path / "moonshine", tmp_path / "x.tflite"
    speech = models.moonshine(len(WORDS), **SIZES, max_length=9, end_id=7)
    checkpoints.save_huggingface(randomize(speech, 3), folder)
    with_tokenizer(folder)
    taken = taken_of(folder).arguments
    assert taken["source_length"] == [64000, 160000, 480000]
    assert (taken["default_prompt"], taken["max_length"], taken["end_id"]) == ([1], 9, [7])
    code, _, err = run("export", folder, path, "--lengths", "1600,8000")
    assert code == 0, err
    write_wav(tmp_path / "x.wav", np.sin(np.arange(1500) * 0.1))
    code, out, err = run("predict", path, tmp_path / "x.wav")
    assert code == 0, err
    assert out.strip() == runtime.load(path).transcribe(tmp_path / "x.wav").strip()


def test_speech_with_ctc(run, tmp_path):
    """The labels of the folder's vocabulary are in the file, and `predict` prints their text."""
    folder, path = tmp_path / "wav2vec2", tmp_path / "x.tflite"
    model = models.wav2vec2(
        16, num_layers=1, num_heads=2, intermediate_dim=16, feature_dims=(8,) * 7,
        position_kernel=4, position_groups=2,
    )  # fmt: skip
    model = models.ctc_classifier(model, 4, labels=["", " ", "a", "b"])
    checkpoints.save_huggingface(randomize(model, 3), folder)
    assert taken_of(folder).arguments["source_length"] == [64000, 160000, 480000]
    code, _, err = run("export", folder, path, "--lengths", "1600", "--no-verify")
    assert code == 0, err
    write_wav(tmp_path / "x.wav", np.sin(np.arange(1500) * 0.1) * np.linspace(0, 1, 1500))
    code, out, err = run("predict", path, tmp_path / "x.wav")
    assert code == 0, err
    text = runtime.load(path).transcribe(tmp_path / "x.wav")
    assert text and out.strip("\n") == text


def write_wav(path, sound):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", None))
        file.writeframes(np.round(sound * 32767).astype("<i2").tobytes())


def test_import_names_every_model_type():
    help_ = import_command.import_.__doc__.split("Model types", 1)[1]
    assert set(FAMILIES) <= set(re.findall(r"[\w-]+", help_))


def test_options_of_folders_and_of_files(run, chat, tmp_path):
    (tmp_path / "x.keras").write_bytes(b"")
    for option in (["--architecture", "BertModel"], ["--no-segments"]):
        code, _, err = run("export", tmp_path / "x.keras", tmp_path / "x.tflite", *option)
        assert code == 2 and f"'--{option[0].removeprefix('--no-').removeprefix('--')}'" in err
        assert "it is for a folder of transformers, not for a .keras file" in err
    code, _, err = run("export", chat, tmp_path / "x.tflite", "--custom", "a:B")
    assert code == 2 and "'--custom': it is for a .keras file, not for a folder" in err


def test_a_folder_is_not_called_missing(run, tmp_path):
    (tmp_path / "empty").mkdir()
    for command, output in (("export", "x.tflite"), ("import", "x.keras")):
        code, _, err = run(command, tmp_path / "empty", output)
        assert code == 1 and "empty has no config.json" in err
    code, _, err = run("inspect", tmp_path / "empty")
    assert code == 1 and "empty is a folder, expected a .tflite file" in err
    with pytest.raises(IsADirectoryError, match=r"is a folder, expected a \.keras file"):
        keras_tfm.load_model(tmp_path / "empty")


def test_adapters_of_peft(run, tmp_path):
    folder, path = HUGGING_FACE.parent / "peft" / "llama", tmp_path / "x.keras"
    code, _, err = run("import", folder / "base", path, "--peft", folder / "adapter")
    assert code == 0, err
    found = keras_tfm.load_model(path)(np.array([[3, 4, 5, 6, 7]]))
    np.testing.assert_allclose(found, np.load(folder / "logits.npy"), atol=1e-5)
    for arguments, message in (
        ((folder / "adapter", tmp_path / "y.keras"), "adapters of PEFT"),
        ((folder / "base", tmp_path / "y.keras", "--peft", folder / "base"), "a folder of PEFT"),
    ):
        code, _, err = run("import", *arguments)
        assert code != 0 and message in err and len(err.splitlines()) == 1
    code, _, err = run("export", path, tmp_path / "y.tflite", "--peft", folder / "adapter")
    assert code != 0 and "--peft" in err and "not for a .keras file" in " ".join(err.split())
    assert [x.name for x in tmp_path.iterdir()] == ["x.keras"]
