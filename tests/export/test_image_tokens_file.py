"""Gemma 3 in one file: a picture and a question in, an answer out, as transformers gives it."""

import json

import numpy as np
import pytest
from keras_weights import randomize
from small_tokenizers import byte_pairs
from tokenizers import Tokenizer

from keras_tfm import checkpoints, models, runtime
from keras_tfm.export import export_litertlm, export_tflite

END, LENGTH, SIDE = "<end_of_turn>", 80, 30
PICTURES = [
    np.random.default_rng(i).integers(0, 256, (*size, 3), "uint8").repeat(5, 0).repeat(5, 1)
    for i, size in enumerate([(7, 12), (9, 4), (6, 6)])
]
TOWER = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 7}
SIZES = {
    "dim": 16, "num_layers": 2, "num_heads": 4, "num_key_value_heads": 2, "intermediate_dim": 11,
    "image_size": SIDE, "patch_size": 5, "image": TOWER,
}  # fmt: skip
# Gemma 3's chat template, without system messages.
TURNS = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' "
    "else m['role'] }}\n{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}"
    "{% for x in m['content'] %}{% if x['type'] == 'image' %}<start_of_image>"
    "{% else %}{{ x['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
TOKENS = {
    "boi": "<start_of_image>", "image": "<image_soft_token>", "eoi": "<end_of_image>", "bos": "<b>",
}  # fmt: skip
QUESTION = "What is in the picture?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as transformers has it."""
    folder = tmp_path_factory.mktemp("gemma3")
    reader = Tokenizer.from_str(byte_pairs().to_str())
    reader.add_special_tokens([*TOKENS.values(), END, "<start_of_turn>"])
    model = models.gemma3(
        reader.get_vocab_size(), **SIZES, head_dim=8, windows=[6, None], local_rope_theta=33.0,
        pool_size=2, image_id=reader.token_to_id(TOKENS["image"]),
    )  # fmt: skip
    end_id, images = reader.token_to_id(END), runtime.ImageProcessor((SIDE, SIDE))
    checkpoints.save_huggingface(randomize(model, seed=5), folder, end_id, image_processor=images)
    reader.save(str(folder / "tokenizer.json"))
    settings = {f"{name}_token": x for name, x in TOKENS.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TURNS)
    return folder


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    """Of the folder alone, as `keras-tfm export FOLDER` makes it."""
    path = tmp_path_factory.mktemp("file") / "x.tflite"
    return runtime.load(export_tflite(folder, path, max_length=LENGTH).path)


def test_the_place_of_a_picture_in_the_chat_template(folder):
    template = checkpoints.load_chat_template(folder, image=True)
    around = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"
    assert template.prompt(" Why? ") == (
        f"<b><start_of_turn>user\n{around}Why?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert around not in checkpoints.load_chat_template(folder).prompt("Why?")
    assert checkpoints.load_image_processor(folder) == runtime.ImageProcessor((SIDE, SIDE))


def test_a_question_about_a_picture(file, folder):
    """The texts of transformers' processor and `generate`."""
    transformers = pytest.importorskip("transformers")
    import torch

    theirs = transformers.Gemma3ForConditionalGeneration.from_pretrained(folder).eval()
    module = transformers.models.gemma3.image_processing_pil_gemma3
    images = module.Gemma3ImageProcessorPil.from_pretrained(folder)
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    settings = json.loads((folder / "processor_config.json").read_text())
    live = transformers.Gemma3Processor(
        images, reader, image_seq_length=settings["image_seq_length"]
    )
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = reader.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    answers = []
    for picture in PICTURES:
        inputs = live(images=[picture], text=text, return_tensors="pt")
        with torch.no_grad():
            tokens = theirs.generate(
                **inputs, max_length=LENGTH, do_sample=False, eos_token_id=reader.eos_token_id,
                pad_token_id=0,
            )[0, inputs["input_ids"].shape[1] :]  # fmt: skip
        answers.append(reader.decode(tokens, skip_special_tokens=True))
    assert [file.caption(x, prompt=QUESTION) for x in PICTURES] == answers
    assert file.caption(PICTURES, prompt=file.chat_prompt(QUESTION)) == answers
    assert len(set(answers)) > 1


def test_prompts_that_are_read_in_pieces_are_refused(folder, tmp_path):
    """They could divide a picture, whose tokens see each other."""
    message = "the tokens of a picture see each other in gemma3, and a host reads prompts in pieces"
    with pytest.raises(ValueError, match=message):
        export_tflite(folder, tmp_path / "x.tflite", ["encode", "prefill", "decode"])
    with pytest.raises(ValueError, match="and LiteRT-LM reads prompts in pieces"):
        export_litertlm(folder, tmp_path / "x.litertlm")
