"""Manifests that lie, with right checksums: what the runtime and model.js do with such files.

    python tests/manifest_lies.py      # 10,000 lies in Python, and 10,000 in model.js: some minutes
    python tests/manifest_lies.py --count 500 --kinds speech detector --runtimes Python
    python tests/manifest_lies.py --seed 1 --only 1234  # one lie, with its traceback

A lie changes one to three values of a manifest: of a field, of all fields of a name, or of a field
that the file does not have. The file gets a right checksum, is loaded, and does everything that it
says it can do. An error must be one that the documentation names; no lie may take 500 MB or 2 s.
The lies run in child processes with limits, whose end is a fault, too.
"""

import argparse
import contextlib
import copy
import hashlib
import json
import os
import random
import resource
import selectors
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
WEB = HERE.parent / "examples/web"
MEGABYTES, SECONDS = 500, 2.0
# A lie that takes so long is ended.
PATIENCE = 20.0
ERRORS = (ValueError, TypeError, RuntimeError)
# Kinds that model.js refuses, whatever their manifest says.
NOT_ON_THE_WEB = ("embeddings", "int8_caches")

NUMBERS = [
    *(0, 1, 2, 3, 7, 100, 1000, 10**6, 10**9, 2**31 - 1, 2**31, 2**32 + 1, 2**63, 2**64, 10**30),
    *(-1, -(10**9), 1.5, 1e9, 1e308, -0.5, float("nan"), float("inf"), 10**400),
]
OTHERS = [None, True, False, "", "x", "self", "x" * 10_000, "\ud800", "a\nb"]
OTHERS += [[], {}, [[]], [None], {"x": 1}]
ODD = [*NUMBERS, *OTHERS]
# Fields that a file may not have, by the field beside which they stand.
OPTIONAL: dict[str, list[tuple[str, list[Any]]]] = {
    "dtype": [
        ("pad_id", [0, 1, 10**9]),
        ("vocabulary_size", [1, 5, 2**31, 2**31 - 1, 10**12]),
        ("end_id", [0, 2, 7, 10**9]),
        ("needs_token", [True]),
        ("sees_later", [True]),
        ("sample_rate", [1, 16000, 16001, 44100, 10**9]),
    ],
    "role": [
        ("prefix", [1, 3, 10**9]),
        ("transposed", [["logits"], ["x"], []]),
        ("capacity", [1, 9, 128, 10**9]),
        ("max_length", [1, 9, 10**9]),
        ("vocabulary_size", [1, 13, 10**9]),
        ("prompt", ["target", "tokens", "x"]),
        ("default_prompt", [[1], [10**9], [1] * 10_000]),
        ("target", ["target", "tokens", "x"]),
        ("model", ["image", "x", 1, []]),
    ],
    "quantization": [
        ("labels", [[], ["a"], ["a"] * 3, ["a"] * 10_000]),
        (
            "chat_template",
            [
                {"first": "a", "answer": "b", "next": "c", "system": None, **more}
                for more in ({}, {"trim": 5}, {"trim": ["user", 5]}, {"trim": "user"})
            ],
        ),
        ("tokenizers", [{"tokens": "tokenizer.json"}, {"x": "keras_tfm"}, {"x": "y.model"}]),
        ("tokenizer_options", [{"tokenizer.json": {"add_bos": 1}}, {"x": {}}]),
        (
            "adapters",
            [
                {
                    "base": "x",
                    "layers": {"x": {"depth": 9, "width": 9, "rank": 1, "a": [1], "b": [1]}},
                }
            ],
        ),
        ("models", [{"image": {"model": None}}, {"x": {"model": None, "labels": ["a"]}}]),
        ("cache", ["int8", "float32"]),
        (
            "images",
            [
                {
                    name: {"size": [8, 8], "resize": 8, "resample": "nearest", "channels": 3}
                    | {"background": 0}
                }
                for name in ("pixels", "tokens", "x")
            ],
        ),
    ],
    "family": [("family", ["dalle", "dvae_decoder", "clip_image", "clip_text", "bert"])],
    "arguments": [
        ("head", [{"kind": "sentence_embedding", "arguments": {}}]),
        ("kind", ["sentence_embedding", "embedding", "x"]),
        ("arguments", [{}, {"scale": 1e30}, {"prompts": [], "default_prompt": 3}]),
    ],
}


class Lie(NamedTuple):
    """A manifest that was changed, and how."""

    told: str
    manifest: dict[str, Any]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys from a manifest down to each of its values."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, x in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(x, (*path, key))


def at(manifest: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        manifest = manifest[key]
    return manifest


def lie(manifest: dict[str, Any], seed: Any) -> Lie:
    """One to three changes, the same for the same seed."""
    rng = random.Random(repr(seed))
    result, told = copy.deepcopy(manifest), []
    result.pop("sha256", None)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        changed = rng.choice([_one, _one, _one, _all, _added, _moved])(rng, result)
        if changed:
            told.append(changed)
    return Lie("; ".join(told), result)


def _chosen(rng: random.Random, manifest: dict[str, Any]) -> tuple[Any, ...]:
    """A place: first the name of the field, so that shapes are no more frequent than others."""
    by_name: dict[Any, list[tuple[Any, ...]]] = {}
    for path in places(manifest):
        if path[0] in ("layers", "keras", "tensorflow"):
            continue
        name = next((x for x in reversed(path) if isinstance(x, str)), "")
        is_tensor = len(path) > 3 and path[0] == "signatures" and path[3] == name
        by_name.setdefault("a tensor" if is_tensor else name, []).append(path)
    return rng.choice(by_name[rng.choice(sorted(by_name))])


def _changed(rng: random.Random, manifest: dict[str, Any], value: Any) -> Any:
    """Another value than `value`: near it, of its kind, or of any."""
    if rng.random() < 0.25:
        return copy.deepcopy(rng.choice(ODD))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        near = [value + 1, value - 1, 2 * value, value // 2 if isinstance(value, int) else -value]
        return rng.choice([*near, *NUMBERS])
    if isinstance(value, str):
        names = {x for path in places(manifest) for x in path if isinstance(x, str)}
        texts = {x for path in places(manifest) if isinstance(x := at(manifest, path), str)}
        return rng.choice([*sorted(names | texts), "x", "", value + "x", value * 1000])
    if isinstance(value, list):
        inside = copy.deepcopy(value)
        other = rng.choice(ODD) if not inside or rng.random() < 0.3 else rng.choice(inside)
        return rng.choice(
            [inside[::-1], inside[1:], inside[:-1], [*inside, other], [], inside * 5000]
        )
    if isinstance(value, dict) and value:
        keys = list(value)
        key, other = rng.choice(keys), rng.choice(keys)
        inside = copy.deepcopy(value)
        kind = rng.choice(["drop", "rename", "swap", "reverse", "copy", "empty"])
        if kind == "drop":
            del inside[key]
        elif kind == "rename":
            inside[rng.choice([str(key) + "x", "self", "x"])] = inside.pop(key)
        elif kind == "swap":
            inside[key], inside[other] = inside[other], inside[key]
        elif kind == "reverse":
            inside = dict(reversed(inside.items()))
        elif kind == "copy":
            inside["x"] = copy.deepcopy(inside[key])
        return {} if kind == "empty" else inside
    return copy.deepcopy(rng.choice(ODD))


def _one(rng: random.Random, manifest: dict[str, Any]) -> str:
    path = _chosen(rng, manifest)
    owner, key = at(manifest, path[:-1]), path[-1]
    before = owner[key]
    owner[key] = _changed(rng, manifest, before)
    return f"{path}: {_short_repr(before)} -> {_short_repr(owner[key])}"


def _all(rng: random.Random, manifest: dict[str, Any]) -> str:
    """The same value in all fields of a name, so that they agree with each other."""
    path = _chosen(rng, manifest)
    value = _changed(rng, manifest, at(manifest, path))
    for other in list(places(manifest)):
        if other[-1] == path[-1] and (len(other) > 1 or other == path):
            # It may have been inside of one that has changed.
            with contextlib.suppress(KeyError, IndexError, TypeError):
                at(manifest, other[:-1])[other[-1]] = copy.deepcopy(value)
    return f"all {path[-1]}: {_short_repr(value)}"


def _added(rng: random.Random, manifest: dict[str, Any]) -> str:
    """A field that is optional, beside others."""
    found = [x for x in places(manifest) if x[-1] in OPTIONAL]
    if not found:
        return ""
    name = rng.choice(sorted({x[-1] for x in found}))
    path = rng.choice([x for x in found if x[-1] == name])
    key, values = rng.choice(OPTIONAL[name])
    at(manifest, path[:-1])[key] = copy.deepcopy(rng.choice(values))
    return f"{(*path[:-1], key)}: {_short_repr(at(manifest, path[:-1])[key])}"


def _moved(rng: random.Random, manifest: dict[str, Any]) -> str:
    """The value of a field of the same name elsewhere."""
    path = _chosen(rng, manifest)
    others = [x for x in places(manifest) if x[-1] == path[-1] and x != path]
    if not others:
        return ""
    other = rng.choice(others)
    at(manifest, path[:-1])[path[-1]] = copy.deepcopy(at(manifest, other))
    return f"{path} from {other}"


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:80]}..."


def with_manifest(content: bytes, manifest: dict[str, Any]) -> bytes:
    """The file with this manifest and a right checksum; the manifest is put at the end."""
    from keras_tfm.runtime import litert_internals
    from keras_tfm.runtime.manifest import storage as manifests

    schema = manifests.import_litert("schema_py_generated")
    model = schema.Model.GetRootAsModel(content, 0)
    entries = [model.Metadata(i) for i in range(model.MetadataLength())]
    (number,) = [x.Buffer() for x in entries if x.Name() == manifests.METADATA_NAME]
    place = litert_internals.field_position(model.Buffers(number), 0)
    raw = json.dumps({**manifest, "sha256": manifests.NO_CHECKSUM}).encode()
    start = -(-len(content) // 16) * 16
    result = bytearray(content.ljust(start, b"\0"))
    result[place : place + 4] = (start - place).to_bytes(4, "little")
    result += len(raw).to_bytes(4, "little") + raw
    digest = hashlib.sha256(result).hexdigest().encode()
    end = start + 4 + raw.rindex(manifests.NO_CHECKSUM.encode())
    result[end : end + 64] = digest
    return bytes(result)


PICTURE = np.random.default_rng(0).integers(0, 256, (37, 51, 3)).astype("uint8")
SOUND = (0.5 * np.sin(np.arange(3000) / 5)).astype("float32")


def calls(model: Any, honest: dict[str, Any], adapter: Any = None) -> Iterator[Any]:
    """Functions that call everything that a file may do, on small inputs that the true file takes.

    Args:
        model: the loaded file.
        honest: the manifest of the true file.
        adapter: of a file that takes one.
    """
    from keras_tfm import runtime
    from keras_tfm.runtime.inspection import Inspection

    yield lambda: Inspection(str(model.path), 1, model.manifest, [], {}, []).table()
    parts = [model, *model.models.values()]
    text, other = "two three", "hello abc"
    for name, signature in honest["signatures"].items():
        given = {key: np.ones(x["shape"], x["dtype"]) for key, x in signature["inputs"].items()}
        yield lambda name=name, given=given: model.run(name, given)
    ids = [[1, 2, 3]]
    for one in parts:
        most = [
            x.get("vocabulary_size", 9) - 1
            for s in one.signatures.values()
            for x in s["inputs"].values()
            if "pad_id" in x
        ]
        yield lambda one=one: one.predict(ids)
        yield lambda one=one, most=most: one.predict([[*most[:1]]])
        yield lambda one=one: one.generate([[1, 2], [2, 1]])
        yield lambda one=one, most=most: one.generate([[1, *most[:1]]])
        yield lambda one=one: _first(one.stream(ids))
        drafted = runtime.Sampler(seed=1), runtime.PromptLookup()
        yield lambda one=one, drafted=drafted: _first(one.stream(ids, *drafted))
        for words in (text, other):
            yield lambda one=one, words=words: one.generate_text(words)
            yield lambda one=one, words=words: one.predict_text([words, "two"])
            yield lambda one=one, words=words: _first(one.stream_text(words))
            yield lambda one=one, words=words: one.embed(words)
            yield lambda one=one, words=words: one.embed([words], prompt="query")
            yield lambda one=one, words=words: one.embed_text(words)
        yield lambda one=one: _in_session(one)
        yield lambda one=one: one.session({"pixels": PICTURE})
        yield lambda one=one: one.chat_prompt("two")
        yield lambda one=one: one.chat_prompt([{"role": "system", "content": "a"}] * 1)
        yield lambda one=one: one.predict_images(PICTURE)
        yield lambda one=one: one.detect(PICTURE, 0.0)
        yield lambda one=one: one.caption(PICTURE)
        yield lambda one=one: one.caption([PICTURE], prompt=[1])
        yield lambda one=one: one.embed_image(PICTURE)
        yield lambda one=one: one.zero_shot(["two", "three"])(PICTURE)
        yield lambda one=one: one.transcribe(SOUND)
        yield lambda one=one: one.transcribe(SOUND, 8000, prompt=[1, 3])
        yield lambda one=one: one.predict_audio(SOUND)
        yield lambda one=one: one.listen().append(SOUND)
        yield lambda one=one: _in_pieces(one)
        yield lambda one=one: one.draw("two", candidates=2, sampler=runtime.Sampler(seed=1))
        yield lambda one=one: one.draw(["two"], guidance=2.0, sampler=runtime.Sampler(seed=1))
    if adapter is not None:
        yield lambda: runtime.load(model.path, adapter=adapter).close()


def _first(values: Iterator[Any], count: int = 4) -> list[Any]:
    return [x for x, _ in zip(values, range(count), strict=False)]


def _in_pieces(model: Any) -> None:
    stream = model.open_stream()
    stream.append(SOUND[:1000])
    stream.finish()


def _in_session(model: Any) -> None:
    """A session that is filled to its end, and every one of its calls."""
    session = model.session()
    session.append([1, 2, 3])
    _first(session.stream_tokens())
    other = session.fork()
    session.rewind(2)
    other.generate(max_tokens=3)
    with tempfile.TemporaryDirectory() as folder:
        session.save(f"{folder}/session")
        again = model.session(restore=f"{folder}/session")
        again.generate(max_tokens=2)
    other.append("two abc")
    other.generate()


class Outcome(NamedTuple):
    """What became of a lie.

    Attributes:
        loaded: whether the file was loaded.
        errors: the errors of calls by their name; of wrong kinds also where they were raised.
        wrong: the first error that no documentation names, or "".
    """

    loaded: bool
    errors: Counter[str]
    wrong: str


def outcome(path: Path, honest: dict[str, Any], adapter: Any = None) -> Outcome:
    """Loads a file and calls everything."""
    from keras_tfm import runtime

    errors: Counter[str] = Counter()
    try:
        model = runtime.load(path)
    except BaseException as error:
        return Outcome(False, errors, wrong(error, ValueError))
    first = ""
    try:
        for call in calls(model, honest, adapter):
            try:
                call()
            except BaseException as error:
                errors[type(error).__name__] += 1
                first = first or wrong(error, ERRORS)
    except BaseException as error:  # in what `calls` reads itself, `model.models`
        first = first or wrong(error, ERRORS)
    finally:
        model.close()
    return Outcome(True, errors, first)


def wrong(error: BaseException, allowed: Any) -> str:
    """What is wrong with an error: its type, or that this package did not raise it; else "".

    A ValueError of NumPy's is no answer to a reader either.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = "keras_tfm" in frame.filename and (frame.line or "").startswith("raise")
    if type(error) in (allowed if isinstance(allowed, tuple) else (allowed,)) and ours:
        return "" if "\n" not in str(error) else f"several lines: {error}"
    return f"{type(error).__name__}: {str(error)[:150]} at {frame.filename}:{frame.lineno}"


def read_manifest(content: bytes) -> dict[str, Any]:
    """The manifest in a file's bytes."""
    text = content[content.rindex(b'{"keras_tfm"') :].decode("latin-1")
    manifest: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return manifest


def child(folder: Path, start: int, end: int, seed: int) -> None:
    """Tries the lies `start` to `end` - 1, and prints a line of JSON before and after each."""
    files = load_files(folder)
    adapter = folder / "adapter.npz"
    path = folder / f"lie-{os.getpid()}.tflite"
    for name, content in files.items():  # the honest files: imports and LiteRT's own memory
        path.write_bytes(content)
        found = outcome(path, read_manifest(content), adapter if name == "adapters" else None)
        if found.wrong:
            raise SystemExit(f"{name}, the honest file: {found.wrong}")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEGABYTES * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    names = list(files)
    for number in range(start, end):
        name = names[number % len(names)]
        honest = read_manifest(files[name])
        told, manifest = lie(honest, (seed, number))
        print(json.dumps({"number": number, "name": name, "told": told}), flush=True)
        path.write_bytes(with_manifest(files[name], manifest))
        begun = time.process_time()  # of other processes nothing; `PATIENCE` ends what waits
        found = outcome(path, honest, adapter if name == "adapters" else None)
        seconds = time.process_time() - begun
        line = {"loaded": found.loaded, "errors": found.errors, "wrong": found.wrong}
        print(json.dumps({**line, "seconds": seconds}), flush=True)
    path.unlink()


def load_files(folder: Path) -> dict[str, bytes]:
    """The honest files in a folder, by kind."""
    return {x.stem: x.read_bytes() for x in sorted(folder.glob("*.tflite")) if "lie-" not in x.stem}


class Tally:
    """The outcomes of a run."""

    def __init__(self) -> None:
        self.lies: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.slowest = 0.0
        self.faults: list[str] = []

    def add(self, name: str, told: str, number: int, found: dict[str, Any]) -> None:
        self.lies[name] += 1
        self.refused[name] += not found["loaded"]
        self.slowest = max(self.slowest, found["seconds"])
        fault = found["wrong"]
        if not fault and found["seconds"] > SECONDS:
            fault = f"{found['seconds']:.1f} s"
        if not fault and found.get("megabytes", 0) > MEGABYTES:
            fault = f"{found['megabytes']:.0f} MB"
        if fault:
            self.faults.append(f"{number} {name}: {told}\n    {fault}")
            print(self.faults[-1], flush=True)

    def report(self, what: str) -> None:
        for name, count in sorted(self.lies.items()):
            print(f"{what} {name:12} {count:6} lies, {self.refused[name]:6} refused when loaded")
        print(
            f"{what}: {self.lies.total()} lies, {len(self.faults)} faults (wrong errors, more than "
            f"{MEGABYTES} MB, more than {SECONDS:g} s), the slowest {self.slowest:.2f} s"
        )


def run(command: list[str], start: int, tally: Tally, lies: Path | None = None) -> int:
    """Runs a child on lies from the number `start` on: the number after the last that it tried."""
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(lies.open()) if lies else subprocess.DEVNULL
        errors = stack.enter_context(tempfile.TemporaryFile("w+"))
        process = stack.enter_context(
            subprocess.Popen(
                command, stdin=source, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        )
        assert process.stdout is not None
        waiting = stack.enter_context(selectors.DefaultSelector())
        waiting.register(process.stdout, selectors.EVENT_READ)
        begun: dict[str, Any] | None = None
        while waiting.select(PATIENCE if begun else 120.0):
            line = process.stdout.readline()
            if not line:
                break
            found = json.loads(line)
            if "number" in found:
                begun, start = found, found["number"] + 1
            elif begun is not None:
                tally.add(begun["name"], begun["told"], begun["number"], found)
                begun = None
        else:
            process.kill()
        code = process.wait()
        errors.seek(0)
        reason = f"ended with {code}: {errors.read()[-3000:]}"
    if begun is not None:
        ended = {"loaded": True, "seconds": 0.0, "wrong": reason[:300]}
        tally.add(begun["name"], begun["told"], begun["number"], ended)
    elif code:
        raise SystemExit(f"{command} {reason}")
    return start


def run_python(folder: Path, seed: int, start: int, end: int) -> Tally:
    """Tries lies in Python."""
    tally = Tally()
    command = [sys.executable, __file__, "--folder", str(folder), "--seed", str(seed), "--child"]
    while start < end:
        start = run([*command, str(start), str(end)], start, tally)
    return tally


def run_web(folder: Path, seed: int, start: int, end: int) -> Tally:
    """Tries lies in model.js, on files that it reads, some hundreds a process."""
    tally, files = Tally(), load_files(folder)
    names = [name for name in files if name not in NOT_ON_THE_WEB]
    with tempfile.TemporaryDirectory() as temporary:
        lies = Path(temporary, "lies.jsonl")
        while start < end:
            with lies.open("w") as file:
                for number in range(start, min(start + 500, end)):
                    name = names[number % len(names)]
                    told, manifest = lie(read_manifest(files[name]), (seed, number))
                    text = json.dumps({**manifest, "sha256": "0" * 64})
                    entry = {"number": number, "name": name, "told": told, "manifest": text}
                    print(json.dumps({**entry, "file": str(folder / f"{name}.tflite")}), file=file)
            start = run(["node", str(WEB / "test/lies.js")], start, tally, lies)
    return tally


def make_files(folder: Path, kinds: list[str]) -> None:
    """The honest files; TensorFlow is imported here alone."""
    sys.path[:0] = [str(HERE), str(HERE / "runtime")]
    import kinds_of_files

    from keras_tfm.runtime import adapters
    from keras_tfm.runtime.manifest.storage import read

    for kind in kinds or kinds_of_files.KINDS:
        path = Path(kinds_of_files.file_of(kind))
        (folder / f"{kind}.tflite").write_bytes(path.read_bytes())
        if kind == "adapters":
            found = read(path).adapters
            layers = {
                name: adapters.LowRank(
                    np.ones((x.depth, 2), "float32"), np.ones((2, x.width), "float32"), 1.0
                )
                for name, x in found.layers.items()
            }
            adapters.write(folder / "adapter.npz", found.base, layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=[], help="of files; default: all")
    parser.add_argument("--folder", type=Path, help="with honest files of an earlier run, or new")
    parser.add_argument("--only", type=int, help="the number of one lie")
    parser.add_argument("--runtimes", nargs="+", default=["Python", "model.js"])
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if given.child:
            child(folder, *given.child, given.seed)
            return
        folder.mkdir(exist_ok=True)
        if not load_files(folder):
            make_files(folder, given.kinds)
        start, end = (0, given.count) if given.only is None else (given.only, given.only + 1)
        runs = {"Python": run_python, "model.js": run_web}
        faults = 0
        for name in given.runtimes:
            tally = runs[name](folder.resolve(), given.seed, start, end)
            tally.report(name)
            faults += len(tally.faults)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
