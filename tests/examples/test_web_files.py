"""examples/web/model.js in Node, without a browser, with what other people's files may hold."""

from pathlib import Path

import pytest
from kinds_of_files import KINDS, file_of
from manifest_lies import NOT_ON_THE_WEB, run_web
from small_exports import classifier_file
from web_pages import need_node, run_in_node

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module", autouse=True)
def node():
    """All tests here need it."""
    need_node()


def test_vocabularies_as_large_as_those_of_gemma_are_read():
    run_in_node("test:vocabularies", MODEL=classifier_file().path)


def test_no_lie_of_a_manifest_is_worse_than_an_error(tmp_path):
    """`python tests/manifest_lies.py --runtimes model.js` tries 10,000."""
    for kind in KINDS:
        if kind not in NOT_ON_THE_WEB:
            (tmp_path / f"{kind}.tflite").write_bytes(Path(file_of(kind)).read_bytes())
    tally = run_web(tmp_path, seed=0, start=0, end=600)
    assert tally.lies.total() == 600 and not tally.faults
    assert 150 < tally.refused.total() < 600
