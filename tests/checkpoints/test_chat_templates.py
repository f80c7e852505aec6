"""Chat templates as strings, beside the Jinja of `transformers`."""

import json

import pytest
from small_exports import new_path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import keras_tfm
from keras_tfm import runtime
from keras_tfm.checkpoints import load_chat_template, load_jinja_template, load_tokenizer
from keras_tfm.export import export_tflite
from keras_tfm.generation import generate
from keras_tfm.runtime.tokenizers.tokenizer import prompt_ids, read

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Llama 3 and Gemma have them: a start token, trimmed texts; a role of another name.
LLAMA = (
    "{% for m in messages %}{% set text = '<|head|>' + m['role'] + '<|/head|>\n\n'"
    " + m['content'] | trim + '<|eot|>' %}{% if loop.first %}{% set text = bos_token + text %}"
    "{% endif %}{{ text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<turn>' + role + '\n' + m['content'] | trim + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<turn>model\n'}}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ m['content'] + eos_token }}{% else %}{{ raise_exception('Only user and assistant') }}"
    "{% endif %}{% endfor %}"
)
# As Mistral 0.3 has it: a system message in the last turn, where no string can put it.
MISTRAL3 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' }}{% if loop.last and system is defined %}"
    "{{ system + '\n\n' }}{% endif %}{{ m['content'] + '[/INST]' }}{% else %}"
    "{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)
# As GLM-4-0414 has it: a loop of the system messages, then one of the others.
GLM4 = (
    "[gMASK]<sop>{%- for m in messages %}{%- if m.role == 'system' %}\n<|system|>\n{{ m.content }}"
    "\n    {%- endif %}{%- endfor %}\n{%- for m in messages if m.role != 'system' %}"
    "{%- set meta = m.get('metadata', '') %}\n\n    {%- if m.role == 'user' %}\n<|user|>\n"
    "{{ m.content }}\n    {%- elif m.role == 'assistant' and not meta %}\n<|assistant|>\n"
    "{{ m.content }}\n    {%- endif %}\n{%- endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML, "llama": LLAMA, "gemma": GEMMA, "mistral": MISTRAL, "mistral 0.3": MISTRAL3,
    "glm-4": GLM4,
}  # fmt: skip
WITH_SYSTEM = {"chatml", "llama", "glm-4"}
WITHOUT_START = {"chatml", "glm-4"}
MESSAGES = [
    {"role": "user", "content": "ab ba"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "b {{ 1 }} a"},
]
SYSTEM = {"role": "system", "content": "bb"}
# By template, the roles whose texts it writes without the blanks around them.
TRIMMED = {"llama": ("system", "user", "assistant"), "gemma": ("user", "assistant")}


def folder_of(path, template, adds_start=True):
    ids = {x: i for i, x in enumerate(["<s>", "</s>", "<unk>", *"ab"])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    if adds_start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
        "chat_template": template,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("adds_start", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_those_of_transformers(name, adds_start, tmp_path):
    """As text, and as ids: a start token is there once."""
    transformers = pytest.importorskip("transformers")
    folder = folder_of(tmp_path, TEMPLATES[name], adds_start)
    template, tokenizer = load_chat_template(folder), load_tokenizer(folder)
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert (template.system is not None) == (name in WITH_SYSTEM)
    assert template.trim == TRIMMED.get(name, ())
    conversations = [MESSAGES[:1], MESSAGES]
    if name in WITH_SYSTEM:
        conversations += [[SYSTEM, *MESSAGES]]
    conversations += [
        [{**x, "content": f" \n{x['content']}\t\u3000"} for x in messages]
        for messages in conversations
    ]
    for messages in conversations:
        options = {"add_generation_prompt": True}
        text = reference.apply_chat_template(messages, tokenize=False, **options)
        adds = name not in WITHOUT_START and adds_start
        assert template.prompt(messages) == (text.removeprefix("<s>") if adds else text)
        if name not in WITHOUT_START:
            ids = reference.apply_chat_template(messages, return_dict=False, **options)
            assert tokenizer.encode(template.prompt(messages)).ids == ids


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("adds_start", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_has_the_tokens_of_transformers(name, adds_start, by_hand, tmp_path):
    """Turn by turn, as a session reads it; by hand a template has its start token, too."""
    transformers = pytest.importorskip("transformers")
    folder = folder_of(tmp_path, TEMPLATES[name], adds_start)
    template = load_chat_template(folder)
    if by_hand and name not in WITHOUT_START:
        template = template._replace(first="<s>" + template.first.removeprefix("<s>"))
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    options = {"add_generation_prompt": True, "return_dict": False}
    tokenizer = read("tokenizer.json", (folder / "tokenizer.json").read_bytes())
    for start_id in {0, None} if name not in WITHOUT_START else {None}:
        ids = prompt_ids(tokenizer, template.prompt(MESSAGES[:1]), start_id, [1], "x")
        added = [0] if name in WITHOUT_START and adds_start else []  # by the tokenizer alone
        assert ids == [*added, *reference.apply_chat_template(MESSAGES[:1], **options)]
        # What a model writes between the prompt and its answer.
        ids += tokenizer.encode_more(template.gap + MESSAGES[1]["content"])
        ids += tokenizer.encode_more(template.turn(MESSAGES[2]["content"]))
        assert ids == [*added, *reference.apply_chat_template(MESSAGES, **options)]


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        # In older folders, two files; that of the special tokens comes first.
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {"eos_token": "</s>"}),
        ({"eos_token": "<unk>"}, {"eos_token": "</s>"}),
        ({"eos_token": "</s>", "added_tokens_decoder": {}}, {"eos_token": "<unk>"}),
        ({"tokenizer_class": "LlamaTokenizer"}, {}),  # the class's own
        ({"tokenizer_class": "LlamaTokenizerFast", "eos_token": None}, {}),
    ],
)
def test_special_tokens_that_a_template_writes(settings, others, tmp_path):
    transformers = pytest.importorskip("transformers")
    template = (
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    folder = folder_of(tmp_path, template)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    settings |= {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text(json.dumps(others))
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    if settings["tokenizer_class"].startswith("Llama"):
        reference.eos_token = settings.get("eos_token", "</s>")
    wanted = reference.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert load_chat_template(folder).prompt(MESSAGES) == wanted
    assert load_jinja_template(folder).prompt(MESSAGES) == wanted


def test_a_template_in_a_file_of_its_own_and_several_by_name(tmp_path):
    folder_of(
        tmp_path, [{"name": "tool", "template": "x"}, {"name": "default", "template": CHATML}]
    )
    several = load_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    folder_of(tmp_path, None)
    assert load_chat_template(tmp_path) == several
    (tmp_path / "chat_template.jinja").unlink()  # of a processor, as older folders have it
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": CHATML}))
    folder_of(tmp_path, "{{ messages[0].content }}")
    assert load_chat_template(tmp_path) == several
    assert several.first == "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n"


def test_the_file_has_it(tmp_path):
    model = keras_tfm.models.gpt(5, dim=8, num_layers=1, num_heads=2, max_length=90)
    template = load_chat_template(folder_of(tmp_path, GEMMA))
    options = {"prompt_length": 80, "max_length": 84, "verify": False}
    report = export_tflite(
        model,
        new_path(),
        ["decode"],
        tokenizer=load_tokenizer(tmp_path),
        chat_template=template,
        **options,
    )
    file = runtime.load(report.path)
    assert file.chat_prompt(MESSAGES) == template.prompt(MESSAGES)
    assert file.chat_prompt("ab") == "<turn>user\nab<end>\n<turn>model\n"
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode(template.prompt("ab")).ids
    new = generate(model, [ids], max_length=84).tokens[0, len(ids) :]
    assert "".join(file.stream_text(file.chat_prompt("ab"))) == tokenizer.decode(new.tolist())
    with pytest.raises(ValueError, match="needs a tokenizer in the file"):
        export_tflite(model, new_path(), ["decode"], chat_template=template, **options)
    with pytest.raises(ValueError, match=r"must be a runtime\.ChatTemplate"):
        export_tflite(
            model, new_path(), tokenizer=load_tokenizer(tmp_path), chat_template="x", **options
        )
    plain = export_tflite(model, new_path(), ["decode"], **options)
    with pytest.raises(ValueError, match="has no chat template: export it with chat_template="):
        runtime.load(plain.path).chat_prompt("ab")


@pytest.mark.parametrize(
    ("messages", "error", "message"),
    [
        ([], ValueError, "got none"),
        (MESSAGES[:2], ValueError, "got user, assistant"),
        ([SYSTEM], ValueError, "no system message"),
        ([MESSAGES[0], MESSAGES[0]], ValueError, "got user, user"),
        (["ab"], TypeError, "must be a dictionary with role and content, got 'ab'"),
        ([{"role": "user", "content": None}], TypeError, "of the type text, got None"),
    ],
)
def test_other_messages_are_refused(messages, error, message):
    with pytest.raises(error, match=message):
        runtime.ChatTemplate("<", "-", ">").prompt(messages)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages %}{{ m.content | upper }}{{ loop.index }}{% endfor %}",
            "differently",
        ),
        ("{{ messages[0].content }}", "changes, repeats or omits a message"),
        ("{% for m in messages %}", "cannot be read: "),
        ("{{ messages.x.y }}", "failed: "),
        ("{{ ().__class__.__base__.__subclasses__() }}", "failed: .*unsafe"),
    ],
)
def test_templates_that_are_no_strings_are_refused(template, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        load_chat_template(folder_of(tmp_path, template))
    assert "\n" not in str(error.value)


def test_a_folder_without_a_template(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_chat_template(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match=r"has no chat_template\.jinja, and no"):
        load_chat_template(folder_of(tmp_path, None))
