"""Paragraphs of the help, and what is known of them."""

from collections import Counter

import help_data
import translation_data as data
from help_data import Paragraph

PAGE = """<html><body><h1 id="hd_id1">Charts in {0}</h1>
<p id="par_id2">Choose <span class="menuitem">Insert - Chart</span>,
or type
<span class="literal">=A1</span> and press
<span class="keycode">F4</span>, <span class="avis">now</span>.</p>
<p id="par_id3">The same everywhere.</p></body></html>"""


def test_pages_of_applications_and_of_all(tmp_path, monkeypatch):
    """A paragraph that pages of two applications have is about neither, and stays once."""
    for page in ("scalc/01/a.html", "swriter/a.html", "shared/b.html"):
        path = tmp_path / page
        path.parent.mkdir(parents=True)
        path.write_text(PAGE.format(page[1]))
    monkeypatch.setattr(data, "unpacked", lambda language, temporary, folder: tmp_path)
    paragraphs = help_data.help_pages()
    assert [(x.text, x.subject) for x in paragraphs if x.text.startswith("Charts")] == [
        ("Charts in c", "Calc"),
        ("Charts in h", ""),
        ("Charts in w", "Writer"),
    ]
    (same,) = (x for x in paragraphs if x.text == "The same everywhere.")
    assert same.subject == ""
    (marked,) = (x for x in paragraphs if x.words[0] == "Choose")
    assert dict(zip(marked.words, marked.kinds, strict=True)) == {
        "Choose": "",
        "Insert": "screen",
        "-": "screen",
        "Chart,": "screen",
        "or": "",
        "type": "",
        "=A1": "code",
        "and": "",
        "press": "",
        "F4,": "key",
        "now.": "",
    }


def test_nothing_that_is_scored_is_in_training():
    words = ("one", "two", "three")
    some = [
        Paragraph((*words, str(i % 500)), ("",) * 4, "Calc", f"page {i % 230}") for i in range(900)
    ]
    parts = help_data.split(some)
    pages = [{x.document for x in part} for part in parts]
    assert sum(map(len, pages)) == 230 and all(pages)
    once = help_data.once(parts)
    texts = Counter(x.text for part in once for x in part)
    assert set(texts.values()) == {1}
    assert set(texts) == {x.text for x in some}
    assert {x.text for x in once.training} == {x.text for x in parts.training}
    assert help_data.once(help_data.Parts([Paragraph(words[:2], ("", ""), "", "")], [], [])) == (
        [],
        [],
        [],
    )


def test_docstrings_are_there_without_a_network():
    paragraphs = help_data.docstrings()
    assert {x.subject for x in paragraphs} == set(help_data.PACKAGES)
    assert len(paragraphs) > 2_000
    kinds = {x.text: x.kinds for x in paragraphs}
    code = [i == 3 or i == 6 for i in range(7)]
    found = kinds["Remove the specified handler from this logger."]
    assert found == tuple("code" if one else "" for one in code)
