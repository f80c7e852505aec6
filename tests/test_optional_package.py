"""What an error says to install can be installed, wherever keras-tfm came from."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from keras_tfm.optional_package import install_command, optional_package

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "keras_tfm").rglob("*.py"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FUNCTIONS = {"optional_package": 2, "missing_package": 1, "install_command": 0}  # before packages


def packages_of(extra):
    """The names of the packages of an extra, with those of the extras that it names."""
    found = set()
    for requirement in EXTRAS[extra]:
        named = re.fullmatch(r"keras-tfm\[(.*)\]", requirement)
        if named:
            found.update(*map(packages_of, named[1].split(",")))
        else:
            found.add(re.match(r"[\w.-]+", requirement)[0])
    return found


def calls():
    """Of each call in the package: function, packages as far as they are constants, extra."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func.id if isinstance(node, ast.Call) and hasattr(node.func, "id") else None
            if name in FUNCTIONS and path.name != "optional_package.py":
                arguments = node.args[FUNCTIONS[name] :]
                packages = {x.value for x in arguments if isinstance(x, ast.Constant)}
                (extra,) = [x.value.value for x in node.keywords if x.arg == "extra"] or [None]
                yield path.name, packages, extra


@pytest.mark.default
def test_each_extra_that_an_error_names_has_the_packages():
    found = list(calls())
    assert len(found) > 15
    for file, packages, extra in found:
        known = packages_of(extra) if extra else set().union(*map(packages_of, EXTRAS))
        assert packages <= known, file
    assert {extra for *_, extra in found} > {"text", "edge", "images", "litertlm"}


def test_no_other_file_writes_such_an_error():
    for path in SOURCES:
        if path.name != "optional_package.py":
            assert "pip install" not in path.read_text(), path


def test_no_page_installs_from_pypi_what_is_not_there():
    """RELEASING.md says how these lines change with the first release."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"]
    assert len(pages) > 30
    for page in [*pages, ROOT / "docs/command_line.py"]:
        found = re.search(r"pip install [^`\n]*keras-tfm(?!\w).*", page.read_text())
        assert not found, f"{page}: {found}"


@pytest.fixture
def requirements(monkeypatch):
    def use(answer):
        def requires(name):
            assert name == "keras-tfm"
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(importlib.metadata, "requires", requires)

    return use


def test_the_versions_are_those_of_the_metadata(requirements):
    requirements(
        [
            "numpy>=1.26",
            'ai-edge-litert<2.4,>=2.1; extra == "edge"',
            "Other_Package[fast] (>=3) ; extra == 'text'",
            "plain ; python_version > '3'",
        ]
    )
    assert install_command("ai-edge-litert") == 'pip install "ai-edge-litert<2.4,>=2.1"'
    assert install_command("other-package", "plain") == 'pip install "other-package>=3" plain'
    assert install_command("plain", dependencies=False) == "pip install --no-deps plain"


@pytest.mark.parametrize("answer", [None, [], importlib.metadata.PackageNotFoundError("keras-tfm")])
def test_without_metadata_the_names_alone(requirements, answer):
    requirements(answer)
    assert install_command("typer", "rich") == "pip install typer rich"


def test_the_error_of_a_missing_package(requirements, monkeypatch):
    requirements(['pillow>=11; extra == "images"'])
    monkeypatch.setitem(sys.modules, "a_package", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        optional_package("a_package", "pictures need Pillow", "pillow", extra="images")
    expected = 'pictures need Pillow: pip install "pillow>=11" (the extra "images" of keras-tfm)'
    assert str(caught.value) == expected
    assert caught.value.name == "a_package"


def test_what_a_package_itself_misses_keeps_its_message(monkeypatch, tmp_path):
    (tmp_path / "half_installed.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        optional_package("half_installed", "it needs half", "half", extra="text")
