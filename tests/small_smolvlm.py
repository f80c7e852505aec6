"""A small SmolVLM, its tokenizer, and its files: a picture as tiles, and a question about it."""

import functools

import numpy as np
from keras_weights import randomize
from small_exports import once_a_run
from small_tokenizers import byte_pairs
from tokenizers import Tokenizer

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite

END = "<end_of_utterance>"
EXTRA = [
    "<fake_token_around_image>", "<image>", END, "<global-img>",
    *(f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)),
]  # fmt: skip
SIDE, EDGE, IMAGES, LENGTH = 30, 60, 5, 120
FEATURES = 9  # 6 x 6 patches, 2 x 2 of them joined
QUESTION = "What is in the picture?"
TEMPLATE = runtime.ChatTemplate(
    "User:<image>",
    f"{END}\nAssistant:",
    f"{END}\nUser: ",
    ("System: ", f"{END}\nUser:<image>"),
    " ",
)
# The chat template as a program: SmolVLM's, without its start token.
PROGRAM = (
    "{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PROCESSOR = runtime.TileProcessor((SIDE, SIDE), longest_edge=EDGE, num_images=IMAGES)
PICTURES = [
    np.random.default_rng(i).integers(0, 256, (*size, 3), "uint8").repeat(5, 0).repeat(5, 1)
    for i, size in enumerate([(7, 12), (9, 4), (6, 6)])
]


@functools.cache
def tokenizer():
    """Of bytes, with the tokens around images."""
    made = Tokenizer.from_str(byte_pairs().to_str())
    made.add_special_tokens(EXTRA)
    return made


@functools.cache
def model():
    """Of up to five images: four tiles and the whole."""
    reader = tokenizer()
    tower = {"dim": 10, "num_layers": 1, "num_heads": 5, "intermediate_dim": 7}
    return randomize(
        models.smolvlm(
            reader.get_vocab_size(), dim=16, num_layers=2, num_heads=4, num_key_value_heads=2,
            intermediate_dim=11, rope_theta=99.0, image_id=reader.token_to_id("<image>"),
            num_images=IMAGES, image_size=SIDE, patch_size=5, scale_factor=2, image=tower,
        ),
        seed=5,
    )  # fmt: skip


def export(path, roles=None, **options):
    """Its file, by default with the loop inside."""
    return export_tflite(
        model(), path, roles, target="target", max_length=LENGTH, prompt_length=112,
        end_id=tokenizer().token_to_id(END), images=PROCESSOR, chat_template=TEMPLATE,
        tokenizer={"target": tokenizer()}, **options,
    )  # fmt: skip


@once_a_run
def _export_smolvlm(path, roles):
    return export(path, roles.split(","))


def file(roles="generate"):
    """The verified float32 file, made once a run."""
    return _export_smolvlm(roles).path
