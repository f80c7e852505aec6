"""SmolVLM in one file: a picture and a question in, an answer out, as transformers gives it."""

import json

import numpy as np
import pytest
from keras_weights import randomize
from tokenizers import Tokenizer

from keras_tfm import checkpoints, models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator

EXTRA = [
    "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>",
    *(f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)),
]  # fmt: skip
SIDE, EDGE, IMAGES = 30, 60, 5
# As SmolVLM's, without its start token.
TEMPLATE = (
    "{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PICTURES = [
    np.random.default_rng(i).integers(0, 256, (*size, 3), "uint8").repeat(5, 0).repeat(5, 1)
    for i, size in enumerate([(7, 12), (9, 4), (6, 6)])
]


def tokenizer():
    from small_tokenizers import byte_pairs

    made = Tokenizer.from_str(byte_pairs().to_str())
    made.add_special_tokens(EXTRA)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as transformers has it, of a model of several images a row."""
    folder, reader = tmp_path_factory.mktemp("smolvlm"), tokenizer()
    tower = {"dim": 10, "num_layers": 1, "num_heads": 5, "intermediate_dim": 7}
    model = models.smolvlm(
        reader.get_vocab_size(), dim=16, num_layers=2, num_heads=4, num_key_value_heads=2,
        intermediate_dim=11, rope_theta=99.0, image_id=reader.token_to_id("<image>"),
        num_images=IMAGES, image_size=SIDE, patch_size=5, scale_factor=2, image=tower,
    )  # fmt: skip
    randomize(model, seed=5)
    processor = runtime.TileProcessor((SIDE, SIDE), longest_edge=EDGE, num_images=IMAGES)
    end_id = reader.token_to_id("<end_of_utterance>")
    checkpoints.save_huggingface(model, folder, end_id, image_processor=processor)
    reader.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EXTRA[2]})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def export(folder, path, num_images=IMAGES, **options):
    model = checkpoints.load_huggingface(folder, num_images=num_images)
    processor = checkpoints.load_image_processor(folder)
    assert (processor.longest_edge, processor.num_images) == (EDGE, IMAGES)
    return model, export_tflite(
        model, path, target="target", max_length=120, prompt_length=112,
        images=processor, tokenizer={"target": checkpoints.load_tokenizer(folder)},
        chat_template=checkpoints.load_chat_template(folder, image=True), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    _, report = export(folder, tmp_path_factory.mktemp("file") / "smolvlm.tflite")
    return runtime.load(report.path)


def test_the_template_of_the_folder(folder):
    template = checkpoints.load_chat_template(folder, image=True)
    assert template.prompt("Why?") == "User:<image>Why?<end_of_utterance>\nAssistant:"
    said = ("user", "Why?"), ("assistant", "So."), ("user", "Oh")
    prompt = template.prompt([{"role": role, "content": content} for role, content in said])
    assert prompt.endswith(
        "Assistant: So.<end_of_utterance>\nUser: Oh<end_of_utterance>\nAssistant:"
    )
    plain = checkpoints.load_chat_template(folder)
    assert plain.prompt("Why?") == "User: Why?<end_of_utterance>\nAssistant:"


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_weights_are_verified(quantization, folder, tmp_path):
    _, report = export(
        folder, tmp_path / "x.tflite", quantization=quantization, tolerance=0.5, overwrite=True
    )
    assert report.verification is not None
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
    texts = processor.expand(loaded.chat_prompt("Why?"), PICTURES, 9)
    prompts = [reader.encode(x).ids for x in texts]
    run = Generator(model, 300, end_id=loaded.file.signatures["generate"].end_id, target="target")
    tokens = run({"pixels": processor(PICTURES), "target": prompts}).tokens
    found = loaded.generate({"pixels": processor(PICTURES), "target": prompts}).tokens
    length = min(tokens.shape[1], found.shape[1])
    np.testing.assert_array_equal(found[:, :length], tokens[:, :length])


@pytest.mark.slow
def test_steps_on_the_host(folder, file, tmp_path):
    """Encoded once, prefilled and decoded: the answers of the loop inside the file."""
    _, report = export(folder, tmp_path / "x.tflite", signatures=["encode", "prefill", "decode"])
    loaded = runtime.load(report.path)
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
    live = transformers.Idefics3Processor(pil.from_pretrained(folder), reader, image_seq_len=9)
    question = "What is in the picture?"
    text = "User:<image>What is in the picture?<end_of_utterance>\nAssistant:"
    assert file.chat_prompt(question) == text
    answers = []
    for picture in PICTURES:
        inputs = live(images=[picture], text=text, return_tensors="pt")
        with torch.no_grad():
            tokens = theirs.generate(
                **inputs, max_length=120, do_sample=False, eos_token_id=None, pad_token_id=0
            )[0, inputs["input_ids"].shape[1] :]
        answers.append(reader.decode(tokens, skip_special_tokens=True))
    assert [file.caption(x, prompt=question) for x in PICTURES] == answers
    assert file.caption(PICTURES, prompt=text) == answers
    assert len(set(answers)) > 1
