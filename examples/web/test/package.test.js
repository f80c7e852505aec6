/**
 * The npm package @keras-tfm/runtime, installed from its archive: a worker in headless Chromium, and
 * Node.js. EXPECTED has what Python answers.
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
let site, page;

before(async () => {
  site = await start(folder);
  page = await site.open("/models/page.html");
});
after(() => site?.close());

const inPage = (call, given = expected) => page.evaluate(call, given);

test("a stream in a worker is Python's, and the page is drawn meanwhile", async () => {
  const { pieces, ticks, facts } = await inPage(async ({ text }) => {
    const { loadModelInWorker } = await import("@keras-tfm/runtime");
    const seen = [];
    const onProgress = (done, total) => seen.push([done, total]);
    const model = await loadModelInWorker("chat.tflite", { onProgress });
    const facts = { abilities: model.abilities, length: model.length, size: model.size, seen: seen.at(-1) };
    let ticks = 0;
    const timer = setInterval(() => ticks++, 1);
    const pieces = [];
    for await (const piece of model.stream(text)) pieces.push(piece);
    clearInterval(timer);
    await model.delete();
    return { pieces, ticks, facts };
  });
  assert.equal(pieces.join(""), expected.answer);
  assert.ok(ticks >= pieces.length / 8, `${ticks} ticks for ${pieces.length} pieces`);
  assert.deepEqual(facts.abilities, ["stream"]);
  assert.deepEqual(facts.seen, [facts.size, facts.size]);
});

test("sessions, samplers, functions and breaks cross", async () => {
  const found = await inPage(async ({ parts, count }) => {
    const { loadModelInWorker, sampler } = await import("@keras-tfm/runtime");
    const model = await loadModelInWorker("chat.tflite");
    const session = await model.session();
    for (const part of parts) await session.append(part);
    const fork = await session.fork();
    const { tokens } = await session.generate({ maxTokens: count });
    const again = await fork.generate({ maxTokens: count });
    await fork.rewind(2);
    const kept = await session.save();
    const restored = await model.session({ restore: kept });
    const lengths = [(await session.tokens).length, (await fork.tokens).length, (await restored.tokens).length];
    const drawn = [];
    for (let i = 0; i < 2; i++) {
      const text = [];
      for await (const piece of model.stream("hello", { choose: sampler({ seed: 1 }) })) text.push(piece);
      drawn.push(text.join(""));
    }
    const seen = [];
    const choose = (logits, tokens) => {
      seen.push([logits.length, tokens.length]);
      return 3;
    };
    for await (const token of model.streamTokens([1, 2], { choose })) {
      if (seen.length === 3) break;
    }
    const ids = await model.encode("hello");
    await model.delete();
    return { tokens: [...tokens], again: [...again.tokens], lengths, drawn, seen, ids };
  });
  assert.deepEqual(found.tokens, expected.tokens);
  assert.deepEqual(found.again, expected.tokens);
  const [whole, rewound, restored] = found.lengths;
  assert.equal(whole, restored);
  assert.equal(rewound, whole - 2);
  assert.equal(found.drawn[0], found.drawn[1]);
  assert.deepEqual(found.seen.map(([, count]) => count), [2, 3, 4]);
  assert.deepEqual(found.ids, expected.ids);
});

test("pictures of the page, and errors with their class", async () => {
  const found = await inPage(async () => {
    const { loadModelInWorker, ModelError, PictureError, TextError } = await import("@keras-tfm/runtime");
    const caught = async (call, kind) => {
      const error = await call().catch((error) => error);
      return [error instanceof kind, error.message];
    };
    const pictures = await loadModelInWorker("pictures.tflite");
    const image = document.querySelector("img");
    const outputs = [];
    const canvas = Object.assign(document.createElement("canvas"), { width: image.naturalWidth, height: image.naturalHeight });
    canvas.getContext("2d").drawImage(image, 0, 0);
    const blob = await (await fetch(image.src)).blob();
    for (const source of [blob, image, canvas]) outputs.push([...(await pictures.predictImages(source)).output]);
    const errors = {
      picture: await caught(() => pictures.predictImages(new Blob(["no picture"])), PictureError),
      file: await caught(() => loadModelInWorker("missing.tflite"), ModelError),
      wasm: await caught(() => loadModelInWorker("chat.tflite", { wasm: "/nowhere/" }), ModelError),
    };
    const model = await loadModelInWorker("chat.tflite");
    const other = await loadModelInWorker("chat.tflite");
    const session = await other.session();
    await session.append([3, 4]);
    const stream = other.stream("hello");
    await stream.next();
    const waiting = session.generate();
    await other.delete();
    errors.deleted = await caught(() => other.encode("hello"), ModelError);
    errors.waiting = await caught(() => waiting, ModelError);
    errors.stream = await caught(() => stream.next(), ModelError);
    errors.tokens = await caught(() => session.tokens, ModelError);
    errors.text = await caught(() => model.generate(""), TextError);
    errors.worker = await caught(
      () => loadModelInWorker("chat.tflite", { worker: new Worker("/missing.js") }),
      ModelError,
    );
    return { outputs, errors };
  });
  for (const output of found.outputs) {
    output.forEach((x, i) => assert.ok(Math.abs(x - expected.output[i]) < 1e-4, `${output}`));
  }
  for (const [name, [isKind, message]] of Object.entries(found.errors)) {
    assert.ok(isKind, `${name}: ${message}`);
    assert.ok(!message.includes("\n"), message);
  }
});

test("Node.js answers as Python does", async () => {
  const require = createRequire(join(folder, "page.js"));
  const { loadModel, ImageData, ModelError, PictureError } = await import(
    pathToFileURL(require.resolve("@keras-tfm/runtime"))
  );
  const [model, pictures] = await Promise.all(
    ["chat", "pictures"].map((name) => loadModel(join(folder, `${name}.tflite`))),
  );
  const pieces = [];
  for await (const piece of model.stream(expected.text)) pieces.push(piece);
  assert.equal(pieces.join(""), expected.answer);
  const { data, width, height } = expected.pixels;
  const { output } = await pictures.predictImages(new ImageData(Uint8ClampedArray.from(data), width, height));
  output.forEach((x, i) => assert.ok(Math.abs(x - expected.output[i]) < 1e-4));
  await assert.rejects(loadModel(join(folder, "missing.tflite")), { name: "ModelError" });
  await assert.rejects(loadModel(folder), ModelError);
  await assert.rejects(loadModel(join(folder, "chat.tflite"), { threads: 2 }), ModelError);
  await assert.rejects(pictures.predictImages("picture.png"), PictureError);
  assert.ok(!("importScripts" in globalThis) && !("self" in globalThis));
});
