"""SmolVLM in one file: a picture and a question in, an answer out, as transformers gives it."""

import json

import numpy as np
import pytest
import small_smolvlm
from small_smolvlm import (
    END,
    FEATURES,
    LENGTH,
    PICTURES,
    PROCESSOR,
    PROGRAM,
    QUESTION,
    export,
    tokenizer,
)

from keras_tfm import checkpoints, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as transformers has it."""
    folder, reader = tmp_path_factory.mktemp("smolvlm"), tokenizer()
    end_id, model = reader.token_to_id(END), small_smolvlm.model()
    checkpoints.save_huggingface(model, folder, end_id, image_processor=PROCESSOR)
    reader.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="module")
def file():
    return runtime.load(small_smolvlm.file())


def test_rules_and_template_of_the_folder(folder):
    assert checkpoints.load_image_processor(folder) == PROCESSOR
    template = checkpoints.load_chat_template(folder, image=True)
    assert template.prompt("Why?") == "User:<image>Why?<end_of_utterance>\nAssistant:"
    said = ("user", "Why?"), ("assistant", "So."), ("user", "Oh")
    prompt = template.prompt([{"role": role, "content": content} for role, content in said])
    assert prompt.endswith(
        "Assistant: So.<end_of_utterance>\nUser: Oh<end_of_utterance>\nAssistant:"
    )
    assert template == small_smolvlm.TEMPLATE
    plain = checkpoints.load_chat_template(folder)
    assert plain.prompt("Why?") == "User: Why?<end_of_utterance>\nAssistant:"


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_weights_are_verified(quantization, tmp_path):
    report = export(tmp_path / "x.tflite", quantization=quantization, tolerance=0.5)
    for check in report.verification.checks:  # rounded, and as far as rounding goes
        assert check.graph_error <= 1e-3 < check.relative_error < 0.5, check.signature
    assert isinstance(runtime.load(report.path).caption(PICTURES[0], prompt="Why?"), str)


@pytest.mark.slow
def test_one_image_of_each_row(folder, tmp_path):
    """The folder itself, whose model then reads whole pictures alone."""
    report = export_tflite(folder, tmp_path / "x.tflite")
    loaded = runtime.load(report.path)
    processor = loaded.file.manifest.images["pixels"]
    assert processor.num_images is None
    model = checkpoints.load_huggingface(folder)
    reader = checkpoints.load_tokenizer(folder)
    texts = processor.expand(loaded.chat_prompt("Why?"), PICTURES, FEATURES)
    prompts = [reader.encode(x).ids for x in texts]
    run = Generator(model, 300, end_id=loaded.file.signatures["generate"].end_id, target="target")
    tokens = run({"pixels": processor(PICTURES), "target": prompts}).tokens
    found = loaded.generate({"pixels": processor(PICTURES), "target": prompts}).tokens
    length = min(tokens.shape[1], found.shape[1])
    np.testing.assert_array_equal(found[:, :length], tokens[:, :length])


@pytest.mark.slow
def test_steps_on_the_host(file):
    """Encoded once, prefilled and decoded: the answers of the loop inside the file."""
    loaded = runtime.load(small_smolvlm.file("encode,prefill,decode"))
    for picture in PICTURES:
        answers = [x.caption(picture, prompt="Why?") for x in (loaded, file)]
        assert answers[0] == answers[1]


def test_more_pictures_than_the_file_reads(file):
    with pytest.raises(ValueError, match="at most 5 images of a row, got 10"):
        file.caption([[PICTURES[0], PICTURES[2]]], prompt="<image> or <image>?")
    with pytest.raises(ValueError, match="<image> once for each of 1 pictures, got 2"):
        file.caption(PICTURES[0], prompt="<image> or <image>?")


def test_a_question_about_a_picture(file, folder):
    """The tokens and texts of transformers' processor and `generate`."""
    transformers = pytest.importorskip("transformers")
    import torch

    theirs = transformers.SmolVLMForConditionalGeneration.from_pretrained(folder).eval()
    pil = transformers.models.smolvlm.image_processing_pil_smolvlm.SmolVLMImageProcessorPil
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    live = transformers.Idefics3Processor(
        pil.from_pretrained(folder), reader, image_seq_len=FEATURES
    )
    text = "User:<image>What is in the picture?<end_of_utterance>\nAssistant:"
    assert file.chat_prompt(QUESTION) == text
    answers = []
    for picture in PICTURES:
        inputs = live(images=[picture], text=text, return_tensors="pt")
        with torch.no_grad():
            tokens = theirs.generate(
                **inputs,
                max_length=LENGTH,
                do_sample=False,
                eos_token_id=reader.eos_token_id,
                pad_token_id=0,
            )[0, inputs["input_ids"].shape[1] :]
        answers.append(reader.decode(tokens, skip_special_tokens=True))
    assert [file.caption(x, prompt=QUESTION) for x in PICTURES] == answers
    assert file.caption(PICTURES, prompt=text) == answers
    assert len(set(answers)) > 1
