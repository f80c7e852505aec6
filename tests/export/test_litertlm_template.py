"""The Jinja program of a .litertlm file, beside `ChatTemplate.prompt`: without LiteRT-LM."""

import itertools

import pytest

from keras_tfm.export.litertlm.package import Chat, jinja
from keras_tfm.runtime import ChatTemplate

jinja2 = pytest.importorskip("jinja2")

TEMPLATES = {
    "no system": ChatTemplate("<u>", "<m>", "</s><n>"),
    "system": ChatTemplate("<u>", "<m>", "</s><n>", ("<s>", "</s><u>")),
    "trimmed": ChatTemplate("<u>", "<m>", "</s><n>", ("<s>", "</s><u>"), trim=("user",)),
}
ROLES = ["user", "assistant", "system", "tool", "developer", "model", "User", ""]
TEXT = {"type": "text", "text": "a"}
CONTENTS = [
    "x", " x\n", "", [TEXT, {**TEXT, "text": " b "}], [{"type": "text"}],
    [TEXT, {"type": "image", "path": "/x.png"}],
    [{"text": "a"}], ["a"], [], None, {"text": "a"}, 3, True,
]  # fmt: skip
MORE = [
    {}, {"tool_calls": [{"function": {"name": "f"}}]}, {"tool_calls": []}, {"tool_calls": None},
    {"function_call": {"name": "f"}}, {"images": ["x.png"]}, {"name": "Ann"},
]  # fmt: skip


class Refused(Exception):
    pass


def renderer(template, end="</s>", image=""):
    def refuse(message):
        raise Refused(message)

    environment = jinja2.Environment()
    environment.globals["raise_exception"] = refuse
    return environment.from_string(jinja(template, end, image)).render


def compare(render, template, messages):
    """The text or the error of both."""
    try:
        expected, error = template.prompt(messages), ""
    except (TypeError, ValueError) as refused:
        expected, error = None, str(refused)
    try:
        found, message = render(messages=messages, add_generation_prompt=True), ""
    except Refused as refused:
        found, message = None, str(refused)
    assert found == expected, messages
    assert bool(error) == bool(message)
    assert "\n" not in error + message


@pytest.mark.parametrize("name", TEMPLATES)
def test_roles_in_all_orders(name):
    render = renderer(TEMPLATES[name])
    orders = itertools.chain(
        *(itertools.product(ROLES, repeat=count) for count in range(4)),
        itertools.product(ROLES[:3], repeat=5),
    )
    for roles in orders:
        messages = [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]
        compare(render, TEMPLATES[name], messages)


@pytest.mark.parametrize("name", TEMPLATES)
def test_contents_of_all_kinds(name):
    template = TEMPLATES[name]
    render = renderer(template)
    for roles in (["user"], ["user", "assistant", "user"], ["system", "user"]):
        for i, content, more in itertools.product(range(len(roles)), CONTENTS, MORE):
            messages = [{"role": role, "content": "text"} for role in roles]
            messages[i] |= {"content": content, **more}
            compare(render, template, messages)


def test_tools_are_refused():
    render, messages = renderer(TEMPLATES["system"]), [{"role": "user", "content": "a"}]
    with pytest.raises(Refused, match="the chat template has no tools"):
        render(messages=messages, tools=[{"type": "function"}])
    assert render(messages=messages, tools=[]) == render(messages=messages) == "<u>a<m>"
    with pytest.raises(TypeError, match="tools"):
        TEMPLATES["system"].prompt(messages, tools=[])


def test_a_conversation_is_written_part_by_part():
    """What LiteRT-LM has read stays, the end token that the model generated included."""
    template = TEMPLATES["system"]
    render = renderer(template)
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    messages = [{"role": role, "content": role} for role in roles]
    whole = template.prompt(messages)
    for count in range(len(messages) + 1):
        part = render(messages=messages[:count], add_generation_prompt=False)
        assert whole.startswith(part)
    assert render(messages=messages[:3]).endswith("<m>assistant</s>")


@pytest.mark.parametrize("place", ["its own", "first"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_picture_among_texts(name, place):
    """What the verification expects of the runtime is what the program writes."""
    template = TEMPLATES[name]
    if place == "first":
        template = template._replace(first=template.first + "<i>")
    image = {"type": "image", "path": "/x.png"}
    parts = {"type": "text", "text": " a "}, {"type": "text", "text": "b\n"}
    chat = Chat(template, jinja(template, "</s>", "<i>"), "", ("", ""), "<i>")
    earlier = {"role": "user", "content": " x "}, {"role": "assistant", "content": " y "}
    for content in ([image, *parts], [parts[0], image, parts[1]], [*parts, image], [*parts]):
        for before in ((), earlier):
            messages = [*before, {"role": "user", "content": content}]
            written = renderer(template, image="<i>")(messages=messages, add_generation_prompt=True)
            assert written == chat.prompt(messages), messages
