"""Mutation test of the core: one changed operator, number or condition at a time.

    pip install -e ".[test]" cosmic-ray
    python .ci/mutation.py                        # everything; some hours on two cores
    python .ci/mutation.py filters beam --sample 40

The operators are Cosmic Ray's. Its runner starts a process per mutant, ten seconds of imports, so
this one imports TensorFlow, Keras and pytest once, and forks: the child imports the mutated source
in place of the file, which is not touched, and runs the module's own tests. A mutant that no test
notices survives and is printed with its diff. The exit status is 1 if one is not listed, with a
reason, in `.ci/survivors.txt`.
"""

import argparse
import ast
import difflib
import importlib.abc
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
SURVIVORS = Path(__file__).with_name("survivors.txt")
LAYERS, TESTS = "keras_tfm/layers", "tests/layers"
ATTENTION = f"{LAYERS}/multi_head_attention"
# Name -> the file, and the tests that have to notice.
TARGETS = {
    "attention": (f"{ATTENTION}/attention.py", [f"{TESTS}/test_attention.py"]),
    "masks": (
        f"{ATTENTION}/masks.py",
        [f"{TESTS}/test_{x}.py" for x in ("masks", "attention", "window_and_caps")],
    ),
    "stepped_attention": (
        f"{ATTENTION}/stepped_attention.py",
        [f"{TESTS}/test_stepping_matrix.py", f"{TESTS}/test_decoding_scope.py"],
    ),
    "visibility": (
        f"{LAYERS}/decoding/visibility.py",
        [f"{TESTS}/test_visibility.py", f"{TESTS}/test_decoding_scope.py"],
    ),
    "scope": (
        f"{LAYERS}/decoding/scope.py",
        [f"{TESTS}/test_decoding_scope.py", f"{TESTS}/test_stepping_matrix.py"],
    ),
    "sinusoids": (f"{LAYERS}/positions/sinusoids.py", [f"{TESTS}/test_positional_encoding.py"]),
    "rotary_embedding": (
        f"{LAYERS}/positions/rotary_embedding.py", [f"{TESTS}/test_rotary_embedding.py"],
    ),
    "rotary_scaling": (
        f"{LAYERS}/positions/rotary_scaling.py", [f"{TESTS}/test_rotary_embedding.py"],
    ),
    "relative_position_bias": (
        f"{LAYERS}/positions/relative_position_bias.py", [f"{TESTS}/test_relative_position.py"],
    ),
    "relative_position_embedding": (
        f"{LAYERS}/positions/relative_position_embedding.py",
        [f"{TESTS}/test_relative_position.py"],
    ),
    "alibi": (f"{LAYERS}/positions/alibi.py", [f"{TESTS}/test_relative_position.py"]),
    "filters": (
        "keras_tfm/generation/filters.py",
        ["tests/generation/test_filters.py"],
    ),
    "beam": (
        "keras_tfm/generation/strategies/beam.py",
        [f"tests/generation/test_{x}.py" for x in ("beam_search", "strategy_states")],
    ),
    "manifest": (
        "keras_tfm/runtime/manifest/storage.py",
        ["tests/runtime/test_manifest.py", "tests/runtime/test_text.py"],
    ),
    "flatbuffer": ("keras_tfm/runtime/flatbuffer.py", ["tests/runtime/test_manifest.py"]),
    "comparison": (
        "keras_tfm/export/verification/comparison.py",
        [f"tests/export/test_{x}.py" for x in ("comparison", "verification")],
    ),
    "verification": (
        "keras_tfm/export/verification/verify.py",
        [f"tests/export/test_{x}.py" for x in ("verification", "several_models")],
    ),
}  # fmt: skip
# Of each operator one other: `a + b` need not become eleven things.
BINARY = {
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul",
    "BitAnd_BitOr", "BitOr_BitAnd", "RShift_LShift", "LShift_RShift",
}  # fmt: skip
COMPARISONS = {
    "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is",
}  # fmt: skip
OTHERS = {
    "AddNot", "NumberReplacer", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
    "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop",
}  # fmt: skip


def main() -> int:
    """Runs the targets of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--sample", type=int, help="number of mutants per file, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(TARGETS)
    if unknown:
        parser.error(f"targets must be of {', '.join(TARGETS)}, got {', '.join(sorted(unknown))}")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras  # noqa: F401
    import pytest  # noqa: F401
    import tensorflow  # noqa: F401

    expected = SURVIVORS.read_text() if SURVIVORS.exists() else ""
    unexpected = 0
    for target in arguments.targets:
        file, tests = TARGETS[target]
        source = (ROOT / file).read_text()
        begin = time.monotonic()
        if run(file, source, tests, limit=1800, shown=True) != 0:
            print(f"{target}: {', '.join(tests)} fail without a mutation", flush=True)
            unexpected += 1
            continue
        limit = 30 + 5 * (time.monotonic() - begin)
        drawn = mutants(source)
        if arguments.sample is not None and arguments.sample < len(drawn):
            drawn = random.Random(arguments.seed).sample(drawn, arguments.sample)
        survivors = 0
        for mutant in drawn:
            if run(file, mutant, tests, limit) == 0:
                survivors += 1
                change = changed_lines(source, mutant)
                known = "\n".join(change.splitlines()[1:]) in expected
                unexpected += not known
                print(f"{file}:{change}\n", "  (known)" if known else "", flush=True)
        seconds = time.monotonic() - begin
        print(f"{target}: {survivors} of {len(drawn)} survived; {seconds:.0f} s\n", flush=True)
    return int(unexpected > 0)


def mutants(source: str) -> list[str]:
    """The source with one change each, of those that change more than an annotation."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    wanted = {
        *OTHERS,
        *(f"ReplaceBinaryOperator_{x}" for x in BINARY),
        *(f"ReplaceComparisonOperator_{x}" for x in COMPARISONS),
    }
    names = [name for name in operator_names() if name.split("/")[1] in wanted]
    if len(names) != len(wanted):
        raise RuntimeError(f"cosmic-ray lacks {wanted - {x.split('/')[1] for x in names}}")
    seen, found = {executed(source)}, []
    for name in names:
        operator = get_operator(name)()
        for i in range(10_000):
            mutant = mutate_code(source, operator, i)
            if mutant is None:
                break
            try:
                meaning = executed(mutant)
            except SyntaxError:
                continue
            if meaning not in seen:
                seen.add(meaning)
                found.append(mutant)
    return found


def executed(source: str) -> str:
    """What of a program is executed: its tree without annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if hasattr(node, field):
                setattr(node, field, ast.Constant(None) if field == "annotation" else None)
    return ast.dump(tree)


def changed_lines(source: str, mutant: str) -> str:
    """The number of the first changed line, and the change."""
    lines = list(difflib.unified_diff(source.splitlines(), mutant.splitlines(), n=0))
    number = lines[2].split()[1][1:].split(",")[0]
    return "\n".join([number, *lines[3:]])


class Mutated(importlib.abc.MetaPathFinder):
    """Imports one module from another file, where AutoGraph and `inspect` find its source."""

    def __init__(self, file: str, source: str):
        self.name = file.removesuffix(".py").replace("/", ".")
        self.path = Path(tempfile.mkdtemp(prefix="mutant_")) / Path(file).name
        self.path.write_text(source)

    def find_spec(self, name, path=None, target=None):
        """Finds the mutated module; other modules are left to the next finder."""
        return (
            importlib.util.spec_from_file_location(name, self.path) if name == self.name else None
        )


def run(file: str, source: str, tests: list[str], limit: float, shown=False) -> int:
    """pytest's exit status with this source in place of the file's; 1 after `limit` seconds."""
    mutated = Mutated(file, source)
    process = os.fork()
    if process == 0:
        status = 3
        try:
            os.setpgid(0, 0)
            sys.dont_write_bytecode = True
            sys.meta_path.insert(0, mutated)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0,) if shown else (0, 1, 2):
                os.dup2(nowhere, descriptor)
            import pytest

            options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "not xla"]
            status = int(pytest.main([*options, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    try:
        begin = time.monotonic()
        while time.monotonic() - begin < limit:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return 1
    finally:
        shutil.rmtree(mutated.path.parent)


if __name__ == "__main__":
    sys.exit(main())
