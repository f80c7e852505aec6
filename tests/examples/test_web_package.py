"""The npm package of keras_tfm/web/runtime, installed: in Chromium, Node.js and TypeScript."""

import json
import lzma
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import small_pictures
from small_listeners import ctc_file, live_file
from small_tokenizers import byte_pairs
from small_writers import ids, written
from web_pages import WEB, need_browser, run_in_browser

from keras_tfm import runtime
from keras_tfm.version import __version__
from keras_tfm.web.npm_packages import PACKAGES

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.browser
PACKAGE = Path(runtime.__file__).parents[1] / "web/runtime"
GOLDEN = Path(__file__).parents[1] / "golden/format_4.tflite.xz"
COUNT = 20  # tokens of a session's answer
PAGE = """<!doctype html>
<html lang="en">
  <title>package</title>
  <link rel="icon" href="data:," />
  <script type="importmap">{"imports": {
    "@keras-tfm/runtime": "./node_modules/@keras-tfm/runtime/index.js",
    "@huggingface/tokenizers": "./node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs",
    "@litertjs/core": "./node_modules/@litertjs/core/dist/index.js",
    "@litertjs/wasm-utils": "./node_modules/@litertjs/wasm-utils/dist/index.js",
    "comlink": "./node_modules/comlink/dist/esm/comlink.mjs"
  }}</script>
  <img src="picture.png" alt="noise" />
</html>
"""
PROGRAM = """import {
  loadModel, loadModelInWorker, ModelError, ModelGroup, sampler,
} from "@keras-tfm/runtime";

const model = await loadModelInWorker("chat.tflite", { onProgress: (done, total) => done / total });
const labels: string[] | null = model.labels;
const ids: number[] = await model.encode("two");
for await (const piece of model.stream("two", { choose: sampler({ seed: 1 }) })) piece.trim();
const session = await model.session();
await session.append("three");
const { text, tokens } = await session.generate({ maxTokens: 3, stop: ["\\n"] });
const sofar: number[] = await session.tokens;
const { milliseconds } = await model.generate("two");
const group = await loadModel<ModelGroup>(new URL("clip.tflite", "https://example.org"));
const vector: Float32Array = await group.models.text.embedText("a", { dimensions: 3 });
const here = await loadModel("chat.tflite");
const same: number[] = here.encode("two");
const source = here.openStream();
const { output } = await source.append(new Float32Array(3));
const rows: number = output[0].length + source.positions + source.widths.output;
const listener = await model.listen();
const heard: string = await listener.append([0.5]);
const far: number = await listener.positions;
// @ts-expect-error: a call that there is not
here.compile();
// @ts-expect-error: an address is no number
await loadModel(3);
const more = [rows, heard, far];
export default [more, labels, ids, text, tokens, sofar, milliseconds, vector, same, ModelError];
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package, two files and a page; what npm says of the archive; its source."""
    need_browser()
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    ignored = shutil.ignore_patterns("node_modules", "dist", "types")
    shutil.copytree(PACKAGE, source, ignore=ignored)
    _npm("ci", "--ignore-scripts", cwd=source)
    packed = json.loads(_npm("pack", "--json", "--pack-destination", str(folder), cwd=source))
    (about,) = packed if isinstance(packed, list) else packed.values()
    archive = folder / about["filename"]
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    _npm("install", "--ignore-scripts", str(archive), cwd=folder)
    shutil.copyfile(written(), folder / "chat.tflite")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype("uint8")
    Image.fromarray(pixels).save(folder / "picture.png")
    small_pictures.export_pictures(
        small_pictures.classifier(), folder / "pictures.tflite", resize=40
    )
    (folder / "pieces.tflite").write_bytes(lzma.decompress(GOLDEN.read_bytes()))
    shutil.copyfile(live_file("float32"), folder / "live.tflite")
    shutil.copyfile(ctc_file("float32"), folder / "ctc.tflite")
    (folder / "page.html").write_text(PAGE)
    return folder, about, source


def _npm(*arguments, cwd):
    result = subprocess.run(["npm", *arguments], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_the_archive_has_code_types_and_worker_and_nothing_else(site):
    _, about, _ = site
    names = {x["path"] for x in about["files"]}
    assert {"index.js", "node.js", "dist/worker.js", "types/index.d.ts", "README.md"} <= names
    assert not any(
        "node_modules" in x or "test" in x or x.endswith(".json") for x in names - {"package.json"}
    )
    assert about["size"] < 150_000


def test_worker_and_node_answer_as_python_does(site):
    folder, _, _ = site
    model = runtime.load(folder / "chat.tflite")
    session, parts = model.session(), [ids(9), ids(30, seed=1)]
    for part in parts:
        session.append(part)
    image = Image.open(folder / "picture.png")
    rgba = np.asarray(image.convert("RGBA"))
    text = "hello world"
    (output,) = runtime.load(folder / "pictures.tflite").predict_images(image)["output"]
    expected = {
        "text": text,
        "answer": "".join(model.stream_text(text)),
        "ids": byte_pairs().encode("hello").ids,
        "parts": [part.tolist() for part in parts],
        "count": COUNT,
        "tokens": session.generate(COUNT).tokens.tolist(),
        "output": output.tolist(),
        "pixels": {"data": rgba.ravel().tolist(), "width": 64, "height": 48},
    }
    run_in_browser("test:package", folder, expected)


def test_sources_in_pieces_are_those_of_python(site):
    """In a page, in a worker and in Node.js: outputs, and texts as they grow."""
    folder, _, _ = site
    rng, sizes = np.random.default_rng(0), [11, 3, 0, 9, 1]
    stream = runtime.load(folder / "pieces.tflite").open_stream()
    width = stream._expected.shape[2]
    parts = [rng.normal(size=(n, width)).astype("float32") for n in sizes]
    found = [stream.append(part)["output"] for part in parts] + [stream.finish()["output"]]
    sounds = [rng.normal(scale=0.1, size=n).astype("float32") for n in (2000, 300, 5003, 0, 960)]
    texts = {}
    for name in ("live", "ctc"):
        listener = runtime.load(folder / f"{name}.tflite").listen()
        texts[name] = [listener.append(x) for x in sounds] + [listener.finish()]
        assert len({*texts[name]}) > 1
    expected = {
        "parts": [part.ravel().tolist() for part in parts],
        "outputs": [[row.tolist() for row in rows] for rows in found],
        "facts": [stream.piece_length, stream.delay, stream.stride, width],
        "sounds": [sound.tolist() for sound in sounds],
        "texts": texts,
    }
    run_in_browser("test:pieces", folder, expected)


def test_a_typescript_program_is_checked(site):
    folder, _, source = site
    (folder / "program.ts").write_text(PROGRAM)
    options = "--noEmit --strict --module esnext --moduleResolution bundler --lib es2023,dom"
    compiler = source / "node_modules/.bin/tsc"
    result = subprocess.run(
        [compiler, "program.ts", *options.split(), "--skipLibCheck", "false", "--types", ""],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


def test_the_programs_of_its_readme_run(site):
    """In Node.js, with a file of this test."""
    folder, _, _ = site
    (program, _) = re.findall(r"```js\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)
    (folder / "readme.js").write_text(program.replace("assistant.tflite", "chat.tflite"))
    result = subprocess.run(["node", "readme.js"], cwd=folder, capture_output=True, check=True)
    model = runtime.load(folder / "chat.tflite")
    assert result.stdout.decode() == "".join(model.stream_text("Once upon a time"))
    assert result.stderr == b""


def test_it_has_the_versions_of_the_pages():
    about = json.loads((PACKAGE / "package.json").read_text())
    assert about["version"] == __version__
    versions = {x.name: x.version for x in PACKAGES}
    for name, version in about["dependencies"].items():
        assert versions.get(name, version) == version, name
    dependencies = json.loads((WEB / "package.json").read_text())["dependencies"]
    assert dependencies.items() <= about["dependencies"].items()
