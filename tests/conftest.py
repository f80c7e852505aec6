"""What holds for all tests."""

import gc


def pytest_addoption(parser):
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help="a skipped test is a failure: for stages of CI that install all that is needed",
    )


def pytest_collection_finish(session):
    """Fewer collections of garbage: to walk what is traced, and stays, was a tenth of the time."""
    gc.collect()
    gc.freeze()  # modules
    gc.set_threshold(50_000, 20, 50)


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.fail_on_skip and reporter and reporter.stats.get("skipped"):
        session.exitstatus = 1
        reporter.write_line("skipped tests fail this run: --fail-on-skip")
