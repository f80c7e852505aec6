"""Chat templates that are Jinja programs, in LiteRT-LM: tools, thinking, roles and images."""

import json
import random
import subprocess
import sys

import pytest
from small_tokenizers import byte_pairs

from keras_tfm import checkpoints, export, models
from keras_tfm.checkpoints import JinjaTemplate
from keras_tfm.export.litertlm import package
from keras_tfm.runtime.inspection.subprocesses import run_module

litert_lm = pytest.importorskip("litert_lm")
# In the way of models of 2026: tools in the system message, calls as JSON, thinking, a line break
# behind the end of a turn.
SOURCE = """\
{%- macro turn(role, text) -%}
{{ '<|' + role + '|>\n' + text + eos_token + '\n' }}
{%- endmacro %}
{{- bos_token }}
{%- set about = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
    {%- set about = about + '\n# Tools\n' %}
    {%- for tool in tools %}
        {%- set name = tool.function.name %}
{{- turn('tool', name + ' ' + (tool | tojson)) }}
    {%- endfor %}
{%- endif %}
{%- if about %}
{{- turn('system', about | trim) }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role in ['user', 'developer', 'tool'] %}
{{- turn(m.role, m.content) }}
    {%- elif m.role == 'assistant' %}
        {%- set calls = namespace(text=m.content or '') %}
        {%- for call in m.tool_calls or [] %}
            {%- set f = call.function %}
            {%- set calls.text = calls.text + '<call>' + f.name + (f.arguments | tojson) %}
        {%- endfor %}
{{- turn('assistant', calls.text) }}
    {%- elif m.role != 'system' %}
{{- raise_exception('no role ' + m.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
{{- '<think></think>' }}
    {%- endif %}
{%- endif %}
"""
TEMPLATE = JinjaTemplate(SOURCE, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
TEXTS = [
    "Hi",
    "a\n b",
    "größer \"x\" <b> & 'y'",
    "",
    "{{ no }} {% jinja %}",
    "日本 😀",
    "  spaces  ",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "model.litertlm"
    model = models.llama(300, dim=16, num_layers=1, num_heads=2, intermediate_dim=16)
    export.export_litertlm(
        model, path, byte_pairs(), max_length=500, start_id=1, end_id=2, chat_template=TEMPLATE
    )
    return path


def conversation(rng):
    """A random one: roles, texts, tools, calls and their results."""

    def said(role):
        return {"role": role, "content": rng.choice(TEXTS)}

    tools = [tool(name) for name in ("add", "größe")[: rng.randrange(3)]]
    messages = [said(role) for role in ("system", "developer") if rng.random() < 0.4]
    for _ in range(rng.randrange(3)):
        messages.append(said("user"))
        if tools and rng.random() < 0.6:
            arguments = {"a": rng.randrange(9), "b": rng.choice(TEXTS)}
            function = {"name": rng.choice(tools)["function"]["name"], "arguments": arguments}
            messages.append({**said("assistant"), "tool_calls": [{"function": function}]})
            messages.append({**said("tool"), "name": function["name"]})
        messages.append(said("assistant"))
    result = {"messages": [*messages, said("user")]}
    if tools:
        result["tools"] = tools
    if rng.random() < 0.3:
        result["enable_thinking"] = rng.random() < 0.5
    return result


def tool(name):
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    function = {"name": name, "description": "Does <it>.", "parameters": parameters}
    return {"type": "function", "function": function}


def test_fifty_conversations(path):
    rng = random.Random(0)
    several = [conversation(rng) for _ in range(50)]
    assert sum("tools" in x for x in several) > 20 and sum("enable_thinking" in x for x in several)
    found = run_module(
        "testing",
        "keras_tfm.runtime.inspection.litertlm_process",
        str(path),
        given={"prompts": [], "conversations": several},
    )["conversations"]
    expected = [TEMPLATE.prompt(**x).removeprefix("<s>") for x in several]
    assert found == expected


_ASK = """
import json, sys, litert_lm
litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
path = sys.argv[1]
with litert_lm.ModelInfo(path) as info:
    found = {"tools": info.llm.supports_function_calling(), "thinks": info.llm.supports_thinking()}
with litert_lm.Engine(path, litert_lm.Backend.CPU(), cache_dir=":nocache") as engine:
    with engine.create_conversation(max_output_tokens=2) as conversation:
        conversation.send_message("Hi")
        found["next"] = conversation.render_message_to_string({"role": "user", "content": "Bye"})
    with engine.create_conversation(max_output_tokens=2) as conversation:
        picture = [{"type": "text", "text": "a"}, {"type": "image", "path": "/x.png"}]
        try:
            conversation.send_message({"role": "user", "content": picture})
            found["picture"] = "read"
        except RuntimeError:
            found["picture"] = "refused"
print(json.dumps(found))
"""


def test_what_the_runtime_knows(path):
    """And the line break behind an answer, which the model does not generate, is not lost."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(path)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "tools": True,
        "thinks": True,
        "next": "\n<|user|>\nBye</s>\n<|assistant|>\n",
        "picture": "refused",
    }


def test_a_program_that_the_runtime_writes_differently_is_not_kept(tmp_path, monkeypatch):
    write = package._chat_of_program

    def broken(*arguments):
        chat = write(*arguments)
        return chat._replace(program=chat.program.replace("# Tools", "# Tool"))

    monkeypatch.setattr(package, "_chat_of_program", broken)
    model = models.llama(300, dim=16, num_layers=1, num_heads=2, intermediate_dim=16)
    with pytest.raises(export.VerificationError, match="LiteRT-LM writes a conversation as"):
        export.export_litertlm(
            model, tmp_path / "model.litertlm", byte_pairs(), max_length=64, start_id=1, end_id=2,
            chat_template=TEMPLATE,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_a_program_that_the_runtime_cannot_run(tmp_path):
    model = models.llama(300, dim=16, num_layers=1, num_heads=2, intermediate_dim=16)
    template = JinjaTemplate("{{ {'a': 1} | tojson(indent=4) }}" + SOURCE, TEMPLATE.tokens)
    with pytest.raises(export.VerificationError, match="LiteRT-LM's Jinja cannot run"):
        export.export_litertlm(
            model, tmp_path / "model.litertlm", byte_pairs(), max_length=64, start_id=1, end_id=2,
            chat_template=template,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_a_folder(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(SOURCE, encoding="utf-8")
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    assert checkpoints.load_jinja_template(tmp_path) == TEMPLATE
    with pytest.raises(ValueError, match="the chat template failed: no role model"):
        TEMPLATE.prompt([{"role": "model", "content": "a"}])
    with pytest.raises(FileNotFoundError, match="no such folder"):
        checkpoints.load_jinja_template(tmp_path / "other")
