"""What is uploaded: versions agree, and PyPI's copy of the README has no relative links."""

import re
import tomllib
from pathlib import Path

import keras_tfm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def on_pypi(text):
    readme = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for rule in readme["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    return text.replace("$HFPR_VERSION", "1.2")


def test_relative_links_and_images_lead_to_the_tag_of_the_release():
    blob = "https://github.com/keras-tfm/keras-tfm/blob/v1.2/"
    raw = "https://raw.githubusercontent.com/keras-tfm/keras-tfm/v1.2/"
    for before, after in {
        "[a](docs/a.md#b), [c](d)": f"[a]({blob}docs/a.md#b), [c]({blob}d)",
        "![a](docs/a.png)": f"![a]({raw}docs/a.png)",
        "[![a](b.png)](c.md)": f"[![a]({raw}b.png)]({blob}c.md)",
        '<img width="3" src="a.png">': f'<img width="3" src="{raw}a.png">',
        '<source srcset="a.png">': f'<source srcset="{raw}a.png">',
        '<a href="a.md"><img src="b"></a>': f'<a href="{blob}a.md"><img src="{raw}b"></a>',
        "[a](https://b.c) ![d](https://e.f)": "[a](https://b.c) ![d](https://e.f)",
        "[a](#b)": "[a](#b)",
    }.items():
        assert on_pypi(before) == after


def test_the_readme_on_pypi_has_no_relative_link():
    shown = on_pypi((ROOT / "README.md").read_text())
    targets = re.findall(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"]+)\"", shown)
    relative = [x or y for x, y in targets if not re.match(r"https?:|#", x or y)]
    assert relative == []


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == keras_tfm.__version__


def test_all_files_name_one_repository():
    home = PROJECT["project"]["urls"]["Homepage"]
    for name in (
        "CITATION.cff",
        "RELEASING.md",
        "docs/conf.py",
        ".github/ISSUE_TEMPLATE/config.yml",
    ):
        assert home in (ROOT / name).read_text(), name
