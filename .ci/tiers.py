"""Chooses the tests of the default tier: the quick ones, and those with a branch of their own.

    pip install -e ".[examples,grammar,hub,lint,litertlm,test]"  # and what with_extras has
    PYTHONPATH=.ci python -m pytest -p tiers --measure=FOLDER  # an hour on two cores
    python .ci/tiers.py FOLDER  # adds to tests/slow.txt

measures the tests of the default tier. With `--anew` in both commands, those of `tests/slow.txt`
are measured, too, and the list is replaced, which takes longer.

A test that computes for `QUICK` seconds or longer goes to the slow tier unless

- it is the cheapest case of its function and takes less than `STATED` seconds: each statement is
  tested, although others run its branches,
- it is the cheapest way to run some branches of the package, at most `PRICE` seconds for each (a
  weighted greedy set cover; Yoo and Harman, "Regression testing minimization, selection and
  prioritization: a survey", 2012),
- it is the cheapest of its file,
- it runs no branch, or has the marker `default`: what it states shows in no branch,
- it computes in processes of its own, whose branches are not seen,
- `.ci/mutation.py` counts on its file, or
- `.ci/run` runs its file on JAX and PyTorch, too, whose branches are not measured.
"""

import argparse
import heapq
import json
import os
import re
import resource
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import mutation
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SLOW = ROOT / "tests" / "slow.txt"
QUICK = 0.2
STATED = 0.5
PRICE = 1.0
HEADER = "# Slow tests beside those that are marked so. Written by .ci/tiers.py, which says why.\n"


@dataclass
class Test:
    """One test: its name, seconds, whether it stays anyway, and the numbers of its branches."""

    name: str
    seconds: float
    stays: bool
    branches: np.ndarray

    @property
    def function(self) -> str:
        """The name without the parameters."""
        return self.name.split("[")[0]

    @property
    def file(self) -> str:
        """The file, from the project's root."""
        return self.name.split("::")[0]


# --- a plugin of pytest: what each test runs and computes


def pytest_addoption(parser):
    """The option that measures."""
    parser.addoption(
        "--measure", metavar="FOLDER", help="where .ci/tiers.py finds what was measured"
    )
    parser.addoption("--anew", action="store_true", help="measure the tests of slow.txt, too")


def pytest_configure(config):
    """In each worker of a run, or in a run without workers."""
    if config.option.measure and (hasattr(config, "workerinput") or not config.option.numprocesses):
        config.pluginmanager.register(Measure(Path(config.option.measure).absolute()))


class Measure:
    """Writes a line of JSON about each test, and the data of coverage with a context a test."""

    def __init__(self, folder: Path):
        import coverage

        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{os.getpid()}"
        self.lines = path.with_suffix(".jsonl").open("w")
        self.coverage = coverage.Coverage(
            path.with_suffix(".coverage"), branch=True, include=[f"{ROOT}/keras_tfm/*"],
            config_file=False, messages=False,
        )  # fmt: skip

    def pytest_collection_finish(self):
        """Imports are over."""
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """A test, from the setup of its fixtures to their end."""
        self.coverage.switch_context(item.nodeid)
        self.passed, before = False, _processor_seconds()
        result = yield
        seconds = [y - x for x, y in zip(before, _processor_seconds(), strict=True)]
        if self.passed:
            stays = item.get_closest_marker("default") is not None or seconds[1] > seconds[0]
            test = {"name": item.nodeid, "seconds": round(sum(seconds), 3), "stays": stays}
            print(json.dumps(test), file=self.lines)
        return result

    def pytest_runtest_logreport(self, report):
        """Whether a test passes: the numbers of others say nothing."""
        self.passed = self.passed or (report.when == "call" and report.passed)

    def pytest_sessionfinish(self):
        """Writes what is left."""
        self.lines.close()
        self.coverage.stop()
        self.coverage.save()


def _processor_seconds() -> tuple[float, float]:
    """Of this process and of its children: unlike time, hardly longer beside other work."""
    usage = [resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return tuple(x.ru_utime + x.ru_stime for x in usage)


# --- the choice


def main() -> None:
    """Reads what a run has measured and writes the list of slow tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where `pytest --measure` wrote")
    parser.add_argument("--anew", action="store_true", help="replace the list")
    arguments = parser.parse_args()
    tests = read(arguments.folder)
    slow = choose(tests)
    listed = [] if arguments.anew else SLOW.read_text().splitlines()[1:]
    SLOW.write_text(HEADER + "".join(f"{line}\n" for line in lines(tests, slow, listed)))
    minutes = [sum(x.seconds for x in part) / 60 for part in (tests, slow)]
    print(
        f"{len(slow)} of {len(tests)} tests are slow: {minutes[1]:.1f} of {minutes[0]:.1f} minutes"
    )


def read(folder: Path) -> list[Test]:
    """The tests that passed, each with the numbers of its branches."""
    tests, branches, numbers = [], {}, {}
    for path in sorted(folder.glob("*.jsonl")):
        tests += [json.loads(line) for line in path.read_text().splitlines()]
        branches |= _branches(path.with_suffix(".coverage"), numbers)
    if not tests:
        raise SystemExit(f"{folder} has no tests: begin with `pytest -p tiers --measure={folder}`")
    names = [test["name"] for test in tests]
    if len({*names}) < len(names):
        raise SystemExit(f"{folder} has several runs: measure into an empty folder")
    nothing = np.zeros(0, int)
    return [Test(**test, branches=branches.get(test["name"], nothing)) for test in tests]


def _branches(path: Path, numbers: dict[tuple, int]) -> dict[str, np.ndarray]:
    """By the name of a test: the numbers of its branches, of which new ones get the next number."""
    found = defaultdict(list)
    with closing(sqlite3.connect(path)) as data:  # coverage documents its tables
        for test, *branch in data.execute(
            "select context, path, fromno, tono from arc"
            " join context on context.id = context_id join file on file.id = file_id"
        ):
            found[test].append(numbers.setdefault(tuple(branch), len(numbers)))
    return {test: np.array(x) for test, x in found.items()}


def choose(tests: list[Test]) -> list[Test]:
    """Those that need not run by default."""
    files = {file for _, found in mutation.TARGETS.values() for file in found}
    files |= of_other_backends()
    count = 1 + max((int(x.branches.max()) for x in tests if len(x.branches)), default=-1)
    is_new = np.ones(count, bool)
    kept = set()

    def keep(i: int) -> None:
        kept.add(i)
        is_new[tests[i].branches] = False

    falling = sorted(enumerate(tests), key=lambda x: -x[1].seconds)
    of_file = {x.file: i for i, x in falling}
    of_function = {x.function: i for i, x in falling}
    for i, test in enumerate(tests):
        stays = test.stays or test.file in files or not len(test.branches)
        quick = STATED if i == of_function[test.function] else QUICK
        if stays or test.seconds < quick or i == of_file[test.file]:
            keep(i)
    always = set(kept)

    def value(i: int) -> float:
        """New branches a second, negative: the heap has the smallest first."""
        return -int(is_new[tests[i].branches].sum()) / tests[i].seconds

    rest = [(value(i), i) for i in range(len(tests)) if i not in kept]
    heapq.heapify(rest)
    while rest:
        _, i = heapq.heappop(rest)
        now = value(i)  # others have run some of its branches since
        if rest and now > rest[0][0]:
            heapq.heappush(rest, (now, i))
        elif -now >= 1 / PRICE:
            keep(i)

    times = np.zeros(count, int)
    for i in kept:
        times[tests[i].branches] += 1
    # Later ones may have made an earlier one superfluous.
    for i in sorted(kept - always, key=lambda x: -tests[x].seconds):
        if np.all(times[tests[i].branches] > 1):
            kept.remove(i)
            times[tests[i].branches] -= 1
    return [x for i, x in enumerate(tests) if i not in kept]


def of_other_backends() -> set[str]:
    """The files that the stage `layers` runs on JAX and PyTorch."""
    stages = (ROOT / ".ci" / "stages.sh").read_text()
    stage = stages.partition("\nstage_layers() {")[2].partition("\n}")[0]
    found = re.findall(r"(tests/\w+/test_)(?:\{(.*?)\}|(\w+))\.py", stage)
    return {f"{x}{name}.py" for x, several, one in found for name in (several or one).split(",")}


def lines(tests: list[Test], slow: list[Test], listed: Iterable[str] = ()) -> list[str]:
    """The lines of the file, with those of before; a function whose cases are all slow is one."""
    names = {x.name for x in slow}
    partly = {x.function for x in tests if x.name not in names}
    found = {x.name if x.function in partly else x.function for x in slow} | {*listed}
    return sorted(x for x in found if x == (function := x.split("[")[0]) or function not in found)


if __name__ == "__main__":
    main()
