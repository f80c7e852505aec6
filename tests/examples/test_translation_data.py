"""Pairs of the translator: from pages, from a file, split by document."""

import pytest
import translation_data as data

PAGE = """<html><body><h1 id="hd_id1">{0}</h1>
<p id="par_id2" class="paragraph">{1} <span class="emph">bold</span><br>{2}
<span class="switchinline"><span hidden="true" class="MAC">Command<span>+</span></span><span
hidden="true">Ctrl+</span></span>C &amp; V.</p>
<p id="par_id3">same</p><p id="bm_id4">a mark</p><p>no id</p><p id="par_id5N{3}"></p>
<p id="par_id6">only here {3}</p></body></html>"""


def test_the_paragraphs_of_a_page(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(PAGE.format("Title", "Some", "next", "1"), encoding="utf-8")
    assert data.paragraphs(page) == {
        "hd_id1": ("Title", ("",)),
        "par_id2": ("Some bold next Ctrl+C & V.", ("", "emph", "", "switchinline", "", "")),
        "par_id3": ("same", ("",)),
        "par_id5N1": ("", ()),
        "par_id6": ("only here 1", ("", "", "")),
    }


def test_the_kind_of_a_word_is_that_of_its_innermost_span(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<p id="par_id1">Choose <span class="avis"><span class="emph">View - <a href="x">Zoom</a>'
        '</span>, <span>or</span></span> (<span class="keycode">F1</span>).</p>'
    )
    (paragraph,) = data.paragraphs(page).values()
    assert paragraph.text == "Choose View - Zoom, or (F1)."
    assert paragraph.kinds == ("", "emph", "emph", "emph", "avis", "")


def test_aligned_by_page_and_id(tmp_path):
    """What one side lacks, has without text, or did not translate is left out."""
    languages = {"en": ("Title", "Some", "next", "1"), "de": ("Titel", "Ein", "zwei", "2")}
    for language, parts in languages.items():
        folder = tmp_path / language / "shared"
        folder.mkdir(parents=True)
        (folder / "one.html").write_text(PAGE.format(*parts), encoding="utf-8")
    (tmp_path / "en" / "shared" / "two.html").write_text(PAGE.format(*"abcd"), encoding="utf-8")
    assert data.aligned(tmp_path / "en", tmp_path / "de") == [
        ("Title", "Titel", "shared/one.html"),
        ("Some bold next Ctrl+C & V.", "Ein bold zwei Ctrl+C & V.", "shared/one.html"),
        ("only here 1", "only here 2", "shared/one.html"),
    ]


def test_a_file_with_and_without_documents(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("one\teins\tfirst\n two   words \tzwei Wörter\n", encoding="utf-8")
    assert data.read(path) == [
        ("one", "eins", "first"),
        ("two words", "zwei Wörter", "two words"),
    ]
    path.write_text("one\teins\nno translation\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: expected source<TAB>target.*'no translation'"):
        data.read(path)
    path.write_text("one\t \n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1: expected"):
        data.read(path)


def test_no_document_is_in_two_parts_and_no_pair_twice_in_one():
    pairs = [data.Pair(f"s{i % 700}", f"t{i % 700}", f"document {i % 300}") for i in range(3000)]
    parts = data.split(pairs)
    documents = [{pair.document for pair in part} for part in parts]
    assert sum(map(len, documents)) == 300
    assert documents[0].isdisjoint(documents[1] | documents[2])
    assert documents[1].isdisjoint(documents[2])
    # 50 and 20 in a thousand of 300 documents: 15 and 6, give or take.
    assert 5 <= len(documents[2]) <= 30
    assert 1 <= len(documents[1]) <= 15
    for part in parts:
        texts = [(pair.source, pair.target) for pair in part]
        assert len(texts) == len(set(texts))
    # More pairs move none of these.
    more = data.split([*pairs, data.Pair("new", "neu", "another")])
    assert set(parts.test) <= set(more.test)


def test_names_that_every_machine_has():
    pairs = {pair.document: pair for pair in data.names()}
    assert pairs["territories/DE"][:2] == ("Germany", "Deutschland")
    assert pairs["languages/fi"][:2] == ("Finnish", "Finnisch")
    assert pairs["currencies/JPY"][:2] == ("Japanese Yen", "Japanischer Yen")
    assert len(pairs) > 1_000


def test_without_debian_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"apt-get is needed .* for the translator --pairs"):
        data.fetch(tmp_path)


def test_what_was_fetched_is_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    (tmp_path / "pairs.tsv").write_text("one\teins\n")
    assert data.fetch(tmp_path) == tmp_path / "pairs.tsv"
