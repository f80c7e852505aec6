"""Gemma 3 and LFM2-VL in one file: a picture and a question in, the answer of transformers out."""

import json

import numpy as np
import pytest
from keras_weights import randomize
from saved_folders import patches_of
from small_tokenizers import byte_pairs
from tokenizers import Tokenizer

from keras_tfm import checkpoints, models, runtime
from keras_tfm.export import export_litertlm, export_tflite
from keras_tfm.generation import Generator

torch = pytest.importorskip("torch")

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
# Gemma 3's chat template, without system messages, and LFM2-VL's.
TURNS = {
    "gemma3": (
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == "
        "'assistant' else m['role'] }}\n{% if m['content'] is string %}{{ m['content'] | trim }}"
        "{% else %}{% for x in m['content'] %}{% if x['type'] == 'image' %}<start_of_image>"
        "{% else %}{{ x['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
        "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "lfm2_vl": (
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n"
        "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for x in m['content'] %}"
        "{% if x['type'] == 'image' %}<image>{% else %}{{ x['text'] }}{% endif %}{% endfor %}"
        "{% endif %}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
    ),
}
TOKENS = {
    "gemma3": {
        "boi": "<start_of_image>", "image": "<image_soft_token>", "eoi": "<end_of_image>",
        "bos": "<b>",
    },
    "lfm2_vl": {
        "image_start": "<|image_start|>", "image": "<image>", "image_end": "<|image_end|>",
        "bos": "<b>",
    },
}  # fmt: skip
OPTIONS = {
    "gemma3": {"head_dim": 8, "windows": [6, None], "local_rope_theta": 33.0, "pool_size": 2},
    "lfm2_vl": {"attends": [False, True], "position_size": 20, "projector_dim": 14},
}
AROUND = {
    "gemma3": "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
    "lfm2_vl": "<|image_start|><image><|image_end|>",
}
QUESTION = "What is in the picture?"


@pytest.fixture(scope="module", params=TURNS)
def folder(request, tmp_path_factory):
    """A folder as transformers has it."""
    kind = request.param
    folder, tokens = tmp_path_factory.mktemp(kind) / kind, TOKENS[kind]
    reader = Tokenizer.from_str(byte_pairs().to_str())
    reader.add_special_tokens([*tokens.values(), END, "<start_of_turn>"])
    model = getattr(models, kind)(
        reader.get_vocab_size(), **SIZES, **OPTIONS[kind],
        image_id=reader.token_to_id(tokens["image"]),
    )  # fmt: skip
    end_id, images = reader.token_to_id(END), runtime.ImageProcessor((SIDE, SIDE))
    checkpoints.save_huggingface(randomize(model, seed=5), folder, end_id, image_processor=images)
    reader.save(str(folder / "tokenizer.json"))
    settings = {f"{name}_token": x for name, x in tokens.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TURNS[kind])
    return folder


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    """Of the folder alone, as `keras-tfm export FOLDER` makes it."""
    path = tmp_path_factory.mktemp("file") / "x.tflite"
    return runtime.load(export_tflite(folder, path, max_length=LENGTH).path)


@pytest.mark.slow
def test_the_place_of_a_picture_in_the_chat_template(folder):
    template, around = checkpoints.load_chat_template(folder, image=True), AROUND[folder.name]
    assert template.first == f"<b><start_of_turn>user\n{around}"
    assert template.prompt("Why?").startswith(f"{template.first}Why?<end_of_turn>\n")
    assert around not in checkpoints.load_chat_template(folder).prompt("Why?")
    assert checkpoints.load_image_processor(folder) == runtime.ImageProcessor((SIDE, SIDE))


def their_inputs(folder, reader, text, picture):
    """Of Gemma 3 the processor's; that of LFM2-VL needs torchvision."""
    import transformers

    if folder.name == "gemma3":
        module = transformers.models.gemma3.image_processing_pil_gemma3
        images = module.Gemma3ImageProcessorPil.from_pretrained(folder)
        settings = json.loads((folder / "processor_config.json").read_text())
        length = settings["image_seq_length"]
        live = transformers.Gemma3Processor(images, reader, image_seq_length=length)
        return live(images=[picture], text=text, return_tensors="pt")
    features = AROUND["lfm2_vl"].replace("<image>", "<image>" * 9)
    ids = reader(text.replace("<image>", features), add_special_tokens=False, return_tensors="pt")
    pixels = runtime.ImageProcessor((SIDE, SIDE))(picture) / 127.5 - 1
    patches = patches_of(np.moveaxis(pixels, -1, 1).astype("float32"), 5)
    return {**ids, **{name: torch.from_numpy(x) for name, x in patches.items()}}


@pytest.mark.slow
def test_a_question_about_a_picture(file, folder):
    """The texts of transformers' processor and `generate`."""
    transformers = pytest.importorskip("transformers")
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    fields = json.loads((folder / "config.json").read_text())
    theirs = getattr(transformers, fields["architectures"][0]).from_pretrained(folder).eval()
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = reader.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    answers = []
    for picture in PICTURES:
        inputs = their_inputs(folder, reader, text, picture)
        with torch.no_grad():
            tokens = theirs.generate(
                **inputs, max_length=LENGTH, do_sample=False, eos_token_id=reader.eos_token_id,
                pad_token_id=0,
            )[0, inputs["input_ids"].shape[1] :]  # fmt: skip
        answers.append(reader.decode(tokens, skip_special_tokens=True))
    assert [file.caption(x, prompt=QUESTION) for x in PICTURES] == answers
    assert file.caption(PICTURES, prompt=file.chat_prompt(QUESTION)) == answers
    assert len(set(answers)) > 1


@pytest.mark.slow
def test_prompts_that_are_read_in_pieces(folder, tmp_path):
    """They could divide a picture of Gemma 3, whose tokens see each other."""
    roles, path = ["encode", "prefill", "decode"], tmp_path / "x.tflite"
    if folder.name == "lfm2_vl":
        report = export_tflite(folder, path, roles, max_length=LENGTH, verify=False)
        assert isinstance(runtime.load(report.path).caption(PICTURES[0], prompt="Why?"), str)
        with pytest.raises(ValueError, match="LiteRT-LM runs models whose only state are keys"):
            export_litertlm(folder, tmp_path / "x.litertlm", max_length=LENGTH)
        return
    message = "the tokens of a picture see each other in gemma3, and a host reads prompts in pieces"
    with pytest.raises(ValueError, match=message):
        export_tflite(folder, path, roles)
    with pytest.raises(ValueError, match="and LiteRT-LM reads prompts in pieces"):
        export_litertlm(folder, tmp_path / "x.litertlm")


def test_placeholders_that_the_model_writes(tmp_path):
    """In a full pass, two are a picture; a step of generation has read each as text.

    A prompt does not end with a picture, of which a step of generation would read the last token.
    """
    model = randomize(
        models.gemma3(
            31, dim=16, num_layers=1, num_heads=2, intermediate_dim=12, head_dim=4, image_id=9,
            image_size=8, patch_size=2, pool_size=2, image=TOWER, tie_output=False,
        )
    )  # fmt: skip
    kernel = model.get_layer("output").kernel  # which makes 9 the token of half of the steps
    kernel.assign(kernel * np.where(np.arange(31) == 9, 9, 1))
    report = export_tflite(model, tmp_path / "x.tflite", prompt_length=9, max_length=12)
    assert report.verification.failures == []
    pixels = np.zeros((1, 8, 8, 3), "float32")
    with pytest.raises(
        ValueError, match=r"picture must be before a token of text.* but row 0 ends"
    ):
        Generator(model, 12, target="target")({"pixels": pixels, "target": [[3, *[9] * 4]]})
    with runtime.load(report.path) as file:
        assert file.signatures["generate"]["inputs"]["target"]["sees_later"]
        with pytest.raises(ValueError, match=r"before a token of text.* but row 0 ends"):
            file.generate({"pixels": pixels, "target": [[3, *[9] * 4]]})


def test_the_rule_of_a_released_folder_of_lfm2_vl(tmp_path):
    """One tile, whatever the size in which its class resizes."""
    (tmp_path / "config.json").write_text('{"model_type": "lfm2_vl"}')
    rules = {
        "image_processor_type": "Lfm2VlImageProcessorFast", "tile_size": 256, "do_pad": True,
        "do_image_splitting": True, "size": {"height": 512, "width": 512}, "resample": 2,
    }  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    assert checkpoints.load_image_processor(tmp_path).size == (256, 256)
