/**
 * What model.js does with files whose manifests lie, in Node; tests/manifest_lies.py makes the lies.
 *
 *     node test/lies.js < LIES.jsonl
 *
 * A line of the input is `{ number, name, told, file, manifest }`: the path of the true file, and
 * the text of another manifest. Two lines of JSON are printed for each: what is tried, and what
 * became of it. Loading must throw a ModelError, a call a ModelError or what its documentation names.
 */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { fileWith, loadBytes, manifestOf, sampler } from "./without_browser.js";

const ERRORS = ["ModelError", "TextError", "PictureError", "AudioError", "RangeError"];
const TEXTS = ["two three", "hello abc"];
const files = {};
const picture = new ImageData(51, 37);
const recording = new Float32Array(900).fill(0.1);

function read(path) {
  if (!files[path]) {
    const bytes = new Uint8Array(readFileSync(path));
    files[path] = { bytes, signatures: manifestOf(bytes).signatures };
  }
  return files[path];
}

async function first(values, count = 4) {
  const found = [];
  for await (const value of values) if (found.push(value) >= count) break;
  return found;
}

async function inSession(model) {
  const session = model.session();
  await session.append([1, 2, 3]);
  await first(session.streamTokens());
  const other = session.fork();
  session.rewind(2);
  await other.generate({ maxTokens: 3 });
  const again = model.session({ restore: session.save() });
  await again.generate({ maxTokens: 2, stop: ["x"] });
  await other.append("two abc");
  await other.generate();
  for (const one of [session, other, again]) one.delete();
}

async function inPieces(stream) {
  await stream.append(recording);
  await stream.finish();
}

/** Everything that a file may do, on small inputs. */
function* callsOf(model) {
  for (const one of [model, ...Object.values(model.models ?? {})]) {
    const call = (name, ...given) => async () => {
      if (one[name]) await one[name](...given);
    };
    for (const text of TEXTS) {
      yield call("generate", text);
      yield call("predict", text);
      yield call("embedText", text);
      yield async () => one.stream && first(one.stream(text));
      yield async () => one.stream && first(one.stream(text, { choose: sampler({ seed: 1 }) }));
    }
    for (const ids of [[1, 2, 3], [1], Array(50).fill(1), [2 ** 31 - 1]]) {
      yield call("generateTokens", ids);
      yield call("predictTokens", ids);
    }
    yield async () => one.session && inSession(one);
    yield call("chatMessage", "two", { system: "a" });
    yield call("predictImages", picture);
    yield call("detect", picture, { threshold: 0 });
    yield call("caption", picture);
    yield call("caption", picture, { prompt: [1], choose: sampler({ seed: 1 }) });
    yield call("embedImage", picture);
    yield async () => one.streamCaption && first(one.streamCaption(picture));
    yield call("transcribe", recording);
    yield call("transcribe", recording, { prompt: [1], choose: sampler({ seed: 1 }) });
    yield call("predictAudio", recording);
    yield async () => one.openStream && inPieces(one.openStream());
    yield async () => one.listen && inPieces(one.listen());
    yield call("generateFrom", [recording]);
    yield async () => one.streamTranscript && first(one.streamTranscript(recording));
    yield call("drawCodes", "two", { candidates: 2 });
    yield call("drawCodes", "two", { guidance: 2 });
    yield call("paint", [new Int32Array(6)]);
    yield call("draw", "two");
  }
}

async function outcome({ file, manifest }) {
  const { bytes, signatures } = read(file);
  let wrong = "";
  const tell = (error, allowed) => {
    if (!allowed.includes(error?.name) && !wrong) wrong = String(error?.stack ?? error).slice(0, 500);
  };
  let model;
  try {
    model = await loadBytes(fileWith(bytes, manifest), signatures);
  } catch (error) {
    tell(error, ["ModelError"]);
    return { loaded: false, wrong };
  }
  for (const call of callsOf(model)) {
    try {
      await call();
    } catch (error) {
      tell(error, ERRORS);
      const internal = /call stack|Invalid (typed )?array length|offset is out of bounds/;
      if (internal.test(error?.message)) tell(error, []); // a RangeError, but not one of ours
    }
  }
  return { loaded: true, wrong };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { number, name, told, ...given } = JSON.parse(line);
  console.log(JSON.stringify({ number, name, told }));
  const before = process.resourceUsage().maxRSS;
  const begun = process.cpuUsage(); // of other processes nothing
  const found = await outcome(given);
  const megabytes = (process.resourceUsage().maxRSS - before) / 1024;
  const seconds = process.cpuUsage(begun).user / 1e6;
  console.log(JSON.stringify({ ...found, megabytes, seconds }));
}
