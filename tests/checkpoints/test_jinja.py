"""Jinja programs that are evaluated with limits, beside jinja2's own evaluation."""

import json
import threading
import time
import tracemalloc

import pytest

from keras_tfm.checkpoints.tokenizers.jinja.meter import TemplateError
from keras_tfm.checkpoints.tokenizers.jinja.program import Program

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = {"role": "system", "content": " Be kind. "}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdefghi",
            "function": {"name": "f", "arguments": {"x": [1, None, True], "y": "ü"}},
        }
    ],
}
CONVERSATIONS = [
    [],
    [{"role": "user", "content": " Hi "}],
    [SYSTEM, {"role": "user", "content": "a"}, {"role": "assistant", "content": "<b>c</b> d"}],
    [{"role": "user", "content": "a"}, CALL, {"role": "tool", "content": "42"}],
    [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}]}],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Wörter", "parameters": {}}}]
# As templates of tools and of reasoning do it.
AGENT = """
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- macro describe(tool, indent=4) -%}
    {{ tool.function.name }}: {{ tool | tojson(indent=indent) }}
{%- endmacro %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system, rest = messages[0]['content'] | trim, messages[1:] %}
{%- else %}
    {%- set system, rest = '', messages %}
{%- endif %}
{{- '[' + system + '] ' ~ strftime_now('%%') }}
{%- if tools is not none %}
    {%- for t in tools if t.type == 'function' %}{{- describe(t) }}{%- endfor %}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in rest[::-1] %}
    {%- if m.role == 'user' and ns.last < 0 %}
        {%- set ns.last = rest | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for m in rest %}
    {%- if m.content is string %}
        {%- set content = m.content.split('</b>')[-1].lstrip() %}
    {%- elif m.content is iterable %}
        {%- set parts = m.content | selectattr('type', 'equalto', 'text') | list %}
        {%- set content = parts | map(attribute='text') | join %}
    {%- endif %}
    {%- if loop.index0 == ns.last %}{{ '*' }}{%- endif %}
    {{- '<' + m['role'] + '>' + content }}
    {%- for call in m.tool_calls or [] %}
        {{- call.function.name + '(' }}
        {%- for key, value in call.function.arguments | items %}
            {{- key ~ '=' ~ (value if value is string else value | tojson) }}
            {{- '' if loop.last else ', ' }}
        {%- endfor %}
        {{- ')' ~ call.id[-3:] }}
    {%- endfor %}
    {%- if not loop.last and loop.nextitem.role == 'tool' %}{{ '!' }}{%- endif %}
{%- else %}
    {{- 'nothing' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}
"""
LANGUAGE = """
{%- macro f(a, b='z') -%}
[{{ a }}{{ b }}{{ varargs | length }}{{ kwargs | length }}{{ caller() if caller else '' }}]
{%- endmacro -%}
{{ f(1) }}{{ f(1, 2, 3, k=4) }}{% call f('x') %}body{% endcall %}
{% set x %}block {{ messages | length }}{% endset %}{{ x | upper }}
{% set y | trim %}  pad  {% endset %}<{{ y }}>{% filter upper | trim %} shout {% endfilter %}
{% for a, b in {'k': 1, 'l': [1, 2]}.items() if a != 'z' %}
{{ loop.index }}/{{ loop.length }}:{{ a }}={{ b }}{{ loop.cycle('o', 'e') }}
{% endfor %}
{% for i in range(5) %}
{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}
{% else %}none{% endfor %}
{% with q = 3 %}{{ q * 2 + 1 }}{% endwith %}{{ q is defined }}
{{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ -3 }} {{ 'a' ~ 1 ~ none }} {{ '-' * 70 }}
{{ [3, 1, 2] | sort | join(',') }} {{ ['b', 'A'] | sort }} {{ [1, 2, 3] | batch(2) | list }}
{{ 'a b' | title }} {{ (1, 2) }} {{ {'a': 'ü<'} | tojson }} {{ '%s-%05.2f' % ('x', 1.5) }}
{{ '{} {x}'.format(1, x='y') }} {{ '%d' | format(3) }} {{ 'line\nnext' | indent(2) }} {{ 'abc'[1] }}
{{ messages | map(attribute='role') | join('/') }} {{ ['a', 'b'] | map('upper') | list }}
{{ messages | rejectattr('x') | list | length }}{{ nothing }}{{ nothing | default('d') }}
{{ '' | default('e', true) }}{{ messages[99] is defined }} {{ 'x' if false }} {{ 1 < 2 < 3 }}
{{ 'a' not in 'bc' }} {{ not true and false or true }} {{ 3.7 | int }}{{ '12' | int + 1 }}
{{ 2.5 | round }}{{ -2 | abs }}{{ [1, 2, 2] | unique | list }}{{ {'b': 1, 'a': 2} | dictsort }}
{{ [1, 2] | first }}{{ 'ab' | reverse }}{{ 'a,b'.split(',') }}{{ 'a' | replace('a', 'b') }}
{% set ns = namespace(a=1) %}{% set z = 0 %}
{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set z = 1 %}{{ z }}{% endfor %}
{{ ns.a }}{{ z }}{{ none }}{{ {'items': 1}['items'] }}{{ {'a': 1}.get('b', 2) }}
{{ '<b>"q"</b> & co' | e }} {{ "it's" | e }} {{ "they're go-ing (well) xYz" | title }}
{{ "they're go-ing" | wordcount }} {{ ['a', 'A', 'b'] | unique | list }} {{ ['b', 'B'] | max }}
{{ ['A', 'a'] | min(case_sensitive=true) }} {{ [{'x': 1}, {'x': 3}] | max(attribute='x') }}
{{ {'b': 1, 'a': 2} | dictsort(false, 'value', true) }} {{ [nothing] }} {{ 'ü' | tojson(true) }}
{{ [{'x': 1, 'y': 'b'}, {'x': 1, 'y': 'A'}] | sort(attribute='x,y') }}
{{ 2.11 | round(1, 'ceil') }} {{ 5 | round }} {{ nothing | default(default_value='d') }}
"""


def reference(source, variables):
    """jinja2 in the environment of `transformers`."""
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment.filters["tojson"] = tojson
    environment.globals["strftime_now"] = lambda form: form.replace("%%", "%")
    return environment.from_string(source).render(**variables)


@pytest.mark.parametrize("source", [AGENT, LANGUAGE], ids=["agent", "language"])
def test_texts_are_those_of_jinja2(source):
    program = Program(source, TOKENS)
    for messages in CONVERSATIONS:
        for tools in (None, TOOLS):
            given = {"messages": messages, "tools": tools, "add_generation_prompt": True}
            assert program.render(**given) == reference(source, {**given, **TOKENS})


GROWING = "{%% set ns = namespace(a=%s, b=%s) %%}{%% for i in range(60) %%}%s{%% endfor %%}"
HOSTILE = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "three loops": "{% for i in range(99) %}" * 3 + "x" + "{% endfor %}" * 3,
    "long text": "{{ 'a' * 1000000000 }}",
    "long list": "{{ [1] * 100000000 }}",
    "range": "{{ range(-1000000000000, 1000000000000) | list }}",
    "doubled text": GROWING % ("'ab'", 0, "{% set ns.a = ns.a ~ ns.a %}"),
    "added text": GROWING % ("'ab'", 0, "{% set ns.a = ns.a + ns.a %}"),
    "doubled block": GROWING % ("'ab'", 0, "{% set b %}{{ ns.a }}{{ ns.a }}{% endset %}"
                                "{% set ns.a = b %}"),
    "sorted by many": "{{ [{'x': 'A' * 60000}, {'x': 'A' * 60000}]"
    " | sort(attribute='x,' * 2000 ~ 'x') }}",
    "doubled list": GROWING % ("[1]", 0, "{% set ns.a = ns.a * 2 %}"),
    "shared lists": GROWING % ("['lol']", 0, "{% set ns.a = [ns.a, ns.a] %}") + "{{ ns.a }}",
    "shared mappings": GROWING % ("1", 0, "{% set ns.a = {1: ns.a, 2: ns.a} %}")
    + "{{ ns.a | tojson }}",
    "compared lists": GROWING % ("[1]", "[1]", "{% set ns.a = [ns.a, ns.a] %}"
                                 "{% set ns.b = [ns.b, ns.b] %}") + "{{ ns.a == ns.b }}",
    "hashed tuples": GROWING % ("(1,)", 0, "{% set ns.a = (ns.a, ns.a) %}") + "{{ {ns.a: 1} }}",
    "nested list": "{% set ns = namespace(a=[]) %}{% for i in range(99999) %}"
    "{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
    "replaced": "{{ ('x' * 900000) | replace('', 'y' * 900000) }}",
    "replaced again": GROWING % ("'ab'", 0, "{% set ns.a = ns.a.replace('a', 'aab') %}"
                                 "{% set ns.a = ns.a.replace('b', 'bba') %}"),
    "joined": "{{ ['a' * 100000] * 1000 | join }}",
    "joined with": "{{ range(9000) | join('x' * 900000) }}",
    "power": "{{ 10 ** (10 ** 8) }}",
    "product": GROWING % (3, 0, "{% set ns.a = ns.a * ns.a %}"),
    "digits": "{{ " + "9" * 100_000 + " }}",
    "format": "{{ '%01000000000d' % 1 }}",
    "format by argument": "{{ '%*d' % (1000000000, 1) }}",
    "braces": "{{ '{:1000000000}'.format(1) }}",
    "braces by argument": "{{ '{:{}}'.format(1, 1000000000) }}",
    "many fields": "{{ ('%(a)s' * 9000) % {'a': 'x' * 900000} }}",
    "date": "{{ strftime_now('%01000000000d') }}",
    "center": "{{ 'a' | center(1000000000) }}",
    "indent": "{{ ('a\n' * 400000) | indent(1000) }}",
    "json": "{{ [1] | tojson(indent=1000000000) }}",
    "separators": "{{ [1] | tojson(separators=['x' * 900000, 'y']) }}",
    "batch": "{{ [1] | batch(1000000000, 'x') }}",
    "wordwrap": "{{ 'a' | wordwrap(1) }}",
    "lipsum": "{{ lipsum(100000) }}",
    "searched": "{% set a = 'a' * 900000 %}{% for i in range(90000) %}{{ 'b' in a }}{% endfor %}",
    "sorted": "{{ (['a' * 900000] * 9000) | sort | length }}",
    "macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "two macros": "{% macro f() %}{{ g() }}{{ g() }}{% endmacro %}"
    "{% macro g() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "caller": "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "lists": "{{ " + "[" * 90 + "]" * 90 + " }}",
    "signs": "{{ " + "-" * 9_000 + "1 }}",
    "sums": "{{ " + "1 +" * 9_000 + "1 }}",
    "filters": "{{ 1" + "|trim" * 9_000 + " }}",
    "blocks": "{% if 1 %}" * 900 + "{% endif %}" * 900,
    "tokens": "{{ a }}" * 28_000,
    "characters": "x" * 1_000_000,
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "format of an attribute": "{{ '{0.__class__}'.format(1) }}",
    "attribute filter": "{{ '' | attr('__class__') }}",
    "namespace": "{{ namespace().__init__ }}",
    "undefined": "{{ nothing.__class__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "append": "{{ messages.append(1) }}",
    "surrogate": r"{{ '\ud800' }}",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_end_in_one_line(name):
    """In any thread, without signals; the bounds are far above what the limits allow."""
    found = []

    def run():
        try:
            found.append(Program(HOSTILE[name], TOKENS).render(messages=[]))
        except TemplateError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    tracemalloc.start()
    start = time.process_time()
    thread.start()
    thread.join()
    seconds = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found[0], TemplateError), found
    assert 0 < len(str(found[0])) < 300
    assert "\n" not in str(found[0])
    assert seconds < 20  # tracing allocations takes most of it
    assert peak < 200e6


def test_renderings_share_one_limit():
    program = Program("{% for i in range(9999) %}{{ i }}{% endfor %}", {})
    with pytest.raises(TemplateError, match=r"takes more than 200,000 steps"):
        for _ in range(20):
            assert program.render().startswith("0123")


def test_a_program_may_refuse():
    with pytest.raises(TemplateError, match="only users"):
        Program("{{ raise_exception('only users') }}", {}).render()
