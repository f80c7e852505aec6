/**
 * Sources in pieces, by the installed npm package: in a page, in a worker of it, and in Node.js.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:pieces
 *
 * tests/examples/test_web_package.py makes the files, and what Python answers.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";

import { start } from "./browser.js";

const folder = process.env.MODELS; // with node_modules, in which the package is
const expected = JSON.parse(readFileSync(process.env.EXPECTED, "utf8"));
const NAMES = ["pieces", "live", "ctc"];
let site, page;

before(async () => {
  site = await start(folder);
  page = await site.open("/models/page.html");
});
after(() => site?.close());

/** What the calls of a package answer; it is sent to the page as text. */
async function answers({ load, files, parts, sounds }) {
  const caught = (call) => call().then(() => "none", ({ name, message }) => `${name}: ${message}`);
  const models = [];
  for (const file of files) models.push(await load(file));
  const stream = await models[0].openStream();
  const facts = [stream.pieceLength, stream.delay, stream.stride, stream.width];
  const waiting = parts.map((part) => stream.append(part)); // they overlap
  const outputs = [...(await Promise.all(waiting)), await stream.finish()].map(({ output }) =>
    output.map((row) => [...row]),
  );
  const texts = {};
  for (const [i, name] of ["live", "ctc"].entries()) {
    const listener = await models[i + 1].listen();
    texts[name] = [];
    for (const sound of sounds) texts[name].push(await listener.append(Float32Array.from(sound)));
    texts[name].push(await listener.finish());
    texts[`${name} at once`] = [];
    const other = await models[i + 1].listen();
    const calls = sounds.map((sound) => other.append(sound));
    for (const call of [...calls, other.finish()]) texts[`${name} at once`].push(await call);
  }
  const open = await models[0].openStream();
  const hears = await models[2].openStream();
  const long = await models[1].listen();
  const problems = {
    ended: await caught(() => stream.append(parts[0])),
    "ended twice": await caught(() => stream.finish()),
    empty: await caught(() => open.finish()),
    count: await caught(() => open.append([1])),
    kind: await caught(() => open.append("readings")),
    text: await caught(() => open.append(["a", "b", "c", "d", "e", "f"])),
    audio: await caught(() => hears.append(new Int32Array(3))),
    loud: await caught(() => hears.append([32768])),
    nan: await caught(() => hears.append([NaN])),
    nothing: await caught(() => hears.append(undefined)),
    features: await caught(() => long.append(new Float32Array(15000))),
    other: await caught(async () => models[2].generateFrom([])),
  };
  const [sampleRate, positions] = [models[2].sampleRate, await hears.positions];
  await hears.append(new Int16Array(7));
  const can = models.map(({ abilities }) => abilities);
  for (const model of models) await model.delete();
  return { facts, outputs, texts, problems, can, sampleRate, positions };
}

function check(found) {
  assert.deepEqual(found.facts, expected.facts);
  assert.equal(found.outputs.length, expected.outputs.length);
  found.outputs.forEach((rows, i) => {
    assert.equal(rows.length, expected.outputs[i].length, `call ${i}`);
    rows.forEach((row, j) =>
      row.forEach((x, k) => assert.ok(Math.abs(x - expected.outputs[i][j][k]) < 1e-4, `${i} ${j} ${k}`)),
    );
  });
  for (const name of ["live", "ctc"]) {
    assert.deepEqual(found.texts[name], expected.texts[name]);
    assert.deepEqual(found.texts[`${name} at once`], expected.texts[name]);
  }
  assert.deepEqual(found.can, [["openStream"], ["listen"], ["openStream", "listen"]]);
  assert.equal(found.sampleRate, 16000);
  const { problems } = found;
  const ended = /^ModelError: readings: the stream has ended: begin another one\.$/;
  const wanted = {
    ended,
    "ended twice": ended,
    empty: /^ModelError: readings: a stream that ends must have got values\.$/,
    count: /^RangeError: readings must have \d+ numbers for each position, not 1 in all\.$/,
    kind: /^RangeError: readings must be a list of numbers, not "readings"\.$/,
    text: /^RangeError: readings must be numbers, not "a"\.$/,
    audio: /^AudioError: A part of a recording must be samples from -1 to 1, or an Int16Array\.$/,
    loud: /^AudioError: A part of a recording must have samples from -1 to 1, not 32768\.$/,
    nan: /^AudioError: .* not NaN\.$/,
    nothing: /^AudioError: A part of a recording must be samples/,
    features: /^RangeError: The decoder takes at most 40 features, not \d+: begin another listener at a pause\.$/,
    other: /^ModelError: The file cannot generateFrom: it has the signatures stream\.$/,
  };
  for (const [name, pattern] of Object.entries(wanted)) assert.match(problems[name], pattern, name);
}

for (const call of ["loadModel", "loadModelInWorker"]) {
  test(`${call} in a page`, async () => {
    const given = { ...expected, call, files: NAMES.map((name) => `${name}.tflite`), source: `${answers}` };
    const found = await page.evaluate(async ({ call, source, ...given }) => {
      const library = await import("@keras-tfm/runtime");
      return new Function(`return ${source}`)()({ load: library[call], ...given });
    }, given);
    check(found);
  });
}

test("Node.js", async () => {
  const require = createRequire(join(folder, "page.js"));
  const { loadModel } = await import(pathToFileURL(require.resolve("@keras-tfm/runtime")));
  const files = NAMES.map((name) => join(folder, `${name}.tflite`));
  check(await answers({ ...expected, load: loadModel, files }));
});
