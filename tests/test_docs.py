"""The guides' programs run, from top to bottom, and print what their comments say."""

import ast
import builtins
import importlib.util
import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest

import keras_tfm

pytestmark = pytest.mark.default  # about texts and sources: no branch shows what it notices
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = [
    "first-model",
    "data",
    "images",
    "speech",
    "drawing",
    "proteins",
    "mathematics",
    "masks",
    "layers",
    "own-layers",
    "architecture",
    "add-a-family",
    "training",
    "quantization-aware-training",
    "distribution",
    "generation",
    "export",
    "litertlm",
    "huggingface",
    "chat",
    "control-tokens",
    "cookbook",
    "from-kerashub",
    "from-transformers-tf",
    "on-device",
    "microcontrollers",
    "troubleshooting",
]
SLOW = [
    *("first-model", "data", "training", "distribution", "generation", "export", "cookbook"),
    *("huggingface", "images", "drawing", "quantization-aware-training", "speech"),
    *("from-kerashub", "litertlm"),
]
# In a test's time: what is replaced.
SMALLER = {"first-model": {"20_000": "500", "epochs=3": "epochs=1"}}
NEEDED = {
    "chat": ["tokenizers"],
    "control-tokens": ["tokenizers"],
    "cookbook": ["tokenizers"],
    "from-kerashub": [
        "keras_hub",
        "tensorflow_text",
        "tokenizers",
        "litert_lm",
        "litert_lm_builder",
    ],
    "from-transformers-tf": [],
    "on-device": ["tokenizers"],
    "data": ["tokenizers", "sentencepiece"],
    "drawing": ["tokenizers", "PIL"],
    "export": ["tokenizers"],
    "generation": ["tokenizers"],
    "huggingface": ["tokenizers", "safetensors"],
    "images": ["PIL", "safetensors", "scipy"],
    "layers": ["matplotlib"],
    "litertlm": ["litert_lm", "litert_lm_builder", "tokenizers"],
    "speech": ["tokenizers"],
    "training": ["sacrebleu", "tensorboard", "matplotlib"],
}
# Folders that a guide's program finds.
FOLDERS = {
    "from-transformers-tf": {"tf_folder": ROOT / "tests/parity/transformers_tf/bert"},
    "huggingface": {"adapted": ROOT / "tests/parity/peft/llama"},
}


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.M | re.S)


# Keras's own saving makes NumPy arrays of variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:folder.+ the new rows:UserWarning")
@pytest.mark.filterwarnings("ignore:int8_full:UserWarning")
# KerasHub's `fit` makes a tf.data.Dataset of the texts, and then warns about its own `shuffle`.
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed:UserWarning")
@pytest.mark.parametrize(
    "page",
    # The first is the README's program, which tests/test_readme.py runs; of training the parts are
    # tested one by one.
    [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in GUIDES],
)
def test_a_guide_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    for package in NEEDED.get(page, []):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    for name, folder in FOLDERS.get(page, {}).items():
        shutil.copytree(folder, name)
    run_blocks(page, SMALLER.get(page, {}))


def run_blocks(page, smaller=()):
    """Runs the programs of a guide, and compares what they print with their comments.

    Args:
        smaller: dict of replacements; with any, nothing is compared.
    """
    printed = {}

    def recorded(*values, **options):
        printed[sys._getframe(1).f_lineno] = " ".join(map(str, values))
        builtins.print(*values, **options)

    names = {"__name__": page, "print": recorded}
    blocks = blocks_of(page)
    assert blocks
    for number, block in enumerate(blocks):
        for long, short in dict(smaller).items():
            block = block.replace(long, short)
        printed.clear()
        exec(compile(block, f"{page}.md, block {number + 1}", "exec"), names)
        for line, text in enumerate(block.splitlines(), 1):
            said = re.search(r"^ *print\(.*\)  # (.*)$", text)
            if said and not smaller:
                found = " ".join(printed.get(line, "").split())
                assert found == said[1], f"{page}.md, block {number + 1}: {text}"


def test_the_first_model_is_the_readme_s():
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (program,) = [text for text in programs if "sort.tflite" in text]
    first = "".join(blocks_of("first-model")[:4])
    assert [x for x in first.splitlines() if x] == [x for x in program.splitlines() if x]


def test_a_processor_is_not_said_to_be_missing():
    """The guide to generation has two tables with the arguments of `transformers`."""
    page = (DOCS / "generation.md").read_text()
    rows = [
        [x.strip() for x in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", page, re.M)
    ]
    here = {x for row in rows if len(row) == 3 for x in re.findall(r"`(\w+)`", row[2])}
    missing = [row[0] for row in rows if len(row) == 2 and "not supported" in row[1]]
    assert len(here) > 10 and len(missing) > 3
    assert here & {x for row in missing for x in re.findall(r"`(\w+)`", row)} == set()


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "package",
    [
        "text",
        "checkpoints",
        "layers",
        "models",
        "training",
        "generation",
        "export",
        "runtime",
        "web",
    ],
)
def test_the_reference_has_each_public_name_once(package):
    page = (DOCS / f"api/{package}.md").read_text()
    listed = re.findall(r"^<!-- keras_tfm\.([\w.]+).* -->$", page, re.M)
    own = ("runtime.inspection.", "generation.processors.")
    names = [name.split(".")[-1] for name in listed if not name.startswith(own)]
    assert sorted(names) == sorted(getattr(keras_tfm, package).__all__)
    if package == "generation":
        names = [name.split(".")[-1] for name in listed if name.startswith(own)]
        assert sorted(names) == sorted(keras_tfm.generation.processors.__all__)


def test_the_reference_has_the_docstrings_as_they_are():
    pytest.importorskip("matplotlib")
    reference = script("reference")
    assert len(reference.pages()) == 10
    for page in reference.pages():
        assert page.read_text() == reference.written(page), "run python docs/reference.py"


def test_sections_of_a_docstring_become_lists_and_examples_fences():
    docstring = """Adds, see arXiv:1706.03762.

    Args:
        a, b: numbers, which
            may be large.
        **kwargs: ignored.

    Returns:
        A sum: exact.

    Raises:
        ValueError: a `bad` number.

    >>> 1 + 1
    2
    """
    assert script("reference").described(inspect.cleandoc(docstring)) == (
        "Adds, see [arXiv:1706.03762](https://arxiv.org/abs/1706.03762).\n\n"
        "**Arguments**\n\n- `a`, `b`: numbers, which\n  may be large.\n- `**kwargs`: ignored.\n\n"
        "**Returns**\n\nA sum: exact.\n\n"
        "**Raises**\n\n- `ValueError`: a `bad` number.\n\n"
        "```pycon\n>>> 1 + 1\n2\n```"
    )


def messages_of(path):
    """The texts of a module, with "\0" for what varies."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(x.value if isinstance(x, ast.Constant) else "\0" for x in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_messages_in_troubleshooting_are_the_library_s():
    page = (DOCS / "troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `(.+?)` (?:\(.*?\) )?\|", page, re.M)
    assert len(quoted) > 30
    # One text, whose parts no pattern goes beyond. Without "..." at an end: searched in a moment.
    known = "\1".join(x for path in (ROOT / "keras_tfm").rglob("*.py") for x in messages_of(path))
    for message in quoted:
        parts = filter(None, message.split("..."))
        assert re.search("[^\1]*".join(map(re.escape, parts)), known), message


def headings_of(page):
    """The anchors of a page's headings, outside blocks of code."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.M | re.S)
    return {script("reference").slug(x) for x in re.findall(r"^#+ (.+)$", text, re.M)}


def test_each_question_has_its_thread_and_a_section_that_answers_it():
    page = (DOCS / "questions.md").read_text()
    questions = re.split(r"^(\d+)\. ", page, flags=re.M)[1:]
    numbers, texts = questions[::2], questions[1::2]
    assert [int(x) for x in numbers] == list(range(1, len(texts) + 1))
    assert len(texts) >= 30
    threads = set()
    for text in texts:
        assert re.match(r"\*\*.+?\?( .+?[.?])?\*\*", text, re.S), text
        (thread,) = re.findall(r"\(\[[^]]+\]\((https://github\.com/[\w./-]+/\d+)\)\)", text)
        threads.add(thread)
        ((file, anchor),) = re.findall(r"See\s+\[[^]]+\]\(([\w-]+\.md)#([\w-]+)\)", text)
        assert anchor in headings_of(file), f"{file}#{anchor}"
    assert len(threads) == len(texts)


def test_the_speed_picture_has_the_numbers_of_the_benchmarks():
    pytest.importorskip("matplotlib")
    pytest.importorskip("babel")
    pictures = script("pictures")
    drawn = {bar.get_width() for axes in pictures.speed().axes for bar in axes.patches}
    text = (ROOT / "benchmarks/README.md").read_text()
    found = {float(x) for x in re.findall(r"(?<=\| )\d+(?:\.\d+)?(?= \|)", text)}
    assert len(drawn) > 20
    assert drawn <= found


def test_every_picture_is_drawn_by_the_script():
    pytest.importorskip("matplotlib")
    pytest.importorskip("babel")
    pages = [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "benchmarks/README.md"]
    shown = {x for page in pages for x in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text(), re.S)}
    shown = {x.rsplit("/", 1)[-1].removesuffix(".png") for x in shown if "examples/" not in x}
    shown -= {"page"}  # a screenshot of Chromium
    assert shown == set(script("pictures").PICTURES)


def test_every_guide_is_in_the_contents():
    tree = ast.parse((DOCS / "conf.py").read_text())
    (contents,) = (
        ast.literal_eval(x.value)
        for x in tree.body
        if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "CONTENTS"
    )
    files = [str(x.relative_to(DOCS).with_suffix("")) for x in DOCS.rglob("*.md")]
    files.remove("README")
    assert sorted(files) == sorted(page for pages in contents.values() for page in pages)
    index = (DOCS / "README.md").read_text()
    assert [x for x in sorted(files) if f"({x}.md)" not in index] == []


def test_the_reference_has_the_command_line_as_it_is():
    pytest.importorskip("typer")
    command_line = script("command_line")
    assert command_line.PAGE.read_text() == command_line.page(), "run python docs/command_line.py"


def test_commands_in_texts_have_options_of_the_command_line():
    typer = pytest.importorskip("typer")
    from keras_tfm.cli import app

    commands = typer.main.get_command(app).commands
    known = {name: {x for p in one.params for x in p.opts} for name, one in commands.items()}
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/**/*.md")]
    wrong, count = [], 0
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for name, rest in re.findall(r"keras-tfm +([a-z]+)\b([^\n`|#>]*)", text):
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest) if name in known else ():
                count += 1
                if option not in known[name]:
                    wrong.append(f"{page.name}: keras-tfm {name} {option}")
    assert not wrong
    assert count > 20
