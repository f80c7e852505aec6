"""examples/web/model.js in Node, without a browser, with what other people's files may hold."""

import pytest
from small_exports import classifier_file
from web_pages import need_node, run_in_node

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module", autouse=True)
def node():
    """All tests here need it."""
    need_node()


def test_vocabularies_as_large_as_those_of_gemma_are_read():
    run_in_node("test:vocabularies", MODEL=classifier_file().path)
