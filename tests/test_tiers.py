"""Which tests .ci/tiers.py puts into the slow tier, and what `slow.txt` names."""

import ast
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiers

ROOT = Path(__file__).parents[1]
PROGRAM = """
import subprocess, sys, pytest
from keras_tfm.arguments import check_integer

@pytest.mark.default
def test_kept():
    pass

def test_a_child():
    subprocess.run([sys.executable, "-c", "import numpy"])

@pytest.mark.parametrize("optional", [True, False])
def test_branches(optional):
    check_integer("count", None if optional else 3, optional=optional)

def test_fails():
    assert False
"""


def measured(name, seconds, branches, stays=False):
    return tiers.Test(f"tests/test_x.py::{name}", seconds, stays, np.array(branches, int))


def slow(*tests):
    """The names of the slow ones, without the file, which has a cheaper test without branches."""
    return [x.name.split("::")[1] for x in tiers.choose([measured("quick", 0, []), *tests])]


def test_quick_tests_stay():
    seconds = tiers.QUICK - 0.01
    assert slow(measured("a", seconds, [0]), measured("b", seconds, [0])) == []


def test_one_case_of_each_function_stays_if_it_is_no_slow_one():
    seconds = tiers.STATED - 0.1
    tests = [measured(f"a[{i}]", seconds + 0.01 * i, [0]) for i in range(3)]
    assert slow(*tests, measured("b", tiers.STATED, [0])) == ["a[1]", "a[2]", "b"]


def test_of_two_that_run_a_branch_the_cheaper_stays():
    assert slow(measured("a", 2, [0, 1]), measured("b", 1.5, [0, 1])) == ["a"]


def test_the_one_with_more_branches_a_second_stays():
    tests = [measured("a", 3, [0, 1, 2, 3]), measured("b", 2, [0, 1]), measured("c", 2, [2, 3])]
    assert slow(*tests) == ["b", "c"]


def test_branches_of_its_own_keep_a_test_of_a_few_seconds_each():
    own = measured("b", 2 * tiers.PRICE, [2, 3])
    assert slow(measured("a", 1, [0, 1]), own, measured("c", 500, [4, 5])) == ["c"]


def test_one_whose_branches_later_ones_run_goes():
    """The first has the most branches a second; then each of the others has one of its own."""
    tests = [
        measured("a", 1, [0, 1, 2, 3]),
        measured("b", 1, [0, 1, 4]),
        measured("c", 1, [2, 3, 5]),
    ]
    assert slow(*tests) == ["a"]


def test_branches_of_quick_tests_are_run_by_them():
    quick = measured("a", 0.01, [0, 1])
    assert slow(quick, measured("b", 1, [0]), measured("c", 1, [1, 2])) == ["b"]


def test_what_stays_whatever_it_runs():
    tests = [measured("a", 5, [0]), measured("b", 6, [0], stays=True), measured("c", 7, [0])]
    assert slow(*tests, measured("d", 8, [])) == ["a", "c"]


def test_the_cheapest_of_a_file_stays():
    names = [f"tests/test_{file}.py::{test}" for file in "xy" for test in "ab"]
    tests = [tiers.Test(x, i + 50, False, np.array([0])) for i, x in enumerate(names)]
    assert [x.name for x in tiers.choose(tests)] == [names[1], names[3]]


def test_the_tests_of_the_mutants_stay():
    name = "tests/layers/test_masks.py::test_x"
    tests = [measured("a", 5, [0]), tiers.Test(name, 50, False, np.array([0]))]
    assert slow(*tests) == ["a"]


def test_files_of_other_backends_stay():
    files = tiers.of_other_backends()
    assert "tests/layers/test_contract.py" in files and len(files) > 15
    assert all((tiers.ROOT / x).is_file() for x in files)
    tests = [measured("a", 5, [0]), tiers.Test(f"{min(files)}::test_x", 9, False, np.array([0]))]
    assert slow(*tests, measured("b", 0, [0])) == ["a"]


def test_lines_name_cases_or_whole_functions():
    tests = [measured(x, 5, []) for x in ("a[1]", "a[2]", "b[1]", "b[2]", "c")]
    lines = tiers.lines(tests, [tests[0], tests[1], tests[2], tests[4]])
    assert lines == [f"tests/test_x.py::{x}" for x in ("a", "b[1]", "c")]


def test_lines_of_before_stay_unless_their_function_is_slow_as_a_whole():
    tests = [measured(x, 5, []) for x in ("a[1]", "a[2]", "b[1]")]
    listed = [f"tests/test_x.py::{x}" for x in ("a[3]", "b[2]", "d")]
    assert tiers.lines(tests, tests[:2], listed) == [
        f"tests/test_x.py::{x}" for x in ("a", "b[2]", "d")
    ]


def test_what_was_measured_is_read(tmp_path):
    """In a process of its own, as coverage is of a process."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = default")
    (tmp_path / "test_x.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-p", "tiers", "--measure=measured"]
    paths = os.pathsep.join((f"{ROOT}/.ci", str(ROOT)))
    env = {**os.environ, "PYTHONPATH": paths, "PYTEST_ADDOPTS": ""}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True)
    assert ended.returncode == 1, ended.stdout.decode()  # one test fails
    tests = {x.name.split("::")[1]: x for x in tiers.read(tmp_path / "measured")}
    assert [*tests] == ["test_kept", "test_a_child", "test_branches[True]", "test_branches[False]"]
    assert [x.stays for x in tests.values()] == [True, True, False, False]
    none, child, short, long = (set(x.branches) for x in tests.values())
    assert none == child == set()
    assert short - long and long - short  # each leaves a condition its own way


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(SystemExit, match="has no tests: begin with `pytest -p tiers --measure="):
        tiers.read(tmp_path)


def test_two_runs_in_a_folder(tmp_path):
    for name in ("1", "2"):
        line = {"name": "tests/test_x.py::test_y", "seconds": 2.0, "stays": False}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
        with sqlite3.connect(tmp_path / f"{name}.coverage") as data:
            for table in ("arc (context_id, file_id, fromno, tono)", "context (id, context)"):
                data.execute(f"create table {table}")
            data.execute("create table file (id, path)")
    with pytest.raises(SystemExit, match="has several runs: measure into an empty folder"):
        tiers.read(tmp_path)


def test_slow_names_tests_that_exist():
    """The name of a test that was renamed would make its successor a default test unseen."""
    names = [x for x in tiers.SLOW.read_text().splitlines() if not x.startswith("#")]
    functions = {tuple(x.split("[")[0].split("::")) for x in names}
    assert len(functions) > 100
    found = set()
    for file in {file for file, _ in functions}:
        tree = ast.parse((ROOT / file).read_text())
        found |= {(file, x.name) for x in tree.body if isinstance(x, ast.FunctionDef)}
    assert functions <= found, f"not there any more: {functions - found}"
