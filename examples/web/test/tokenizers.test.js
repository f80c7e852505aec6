/**
 * What model.js makes of the tokenizers in other people's files, in Node without a browser.
 *
 *     CASES=CASES.json npm run test:tokenizers
 *
 * tests/examples/test_web_files.py writes the cases: `refused`, the settings of tokenizers by name,
 * `forever` and `published`, regular expressions, and `read`, a text and settings by name.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { checkRegex } from "../../../keras_tfm/web/runtime/tokenizer_check.js";
import { fileWith, loadBytes, manifestOf } from "./without_browser.js";

const { model, refused, forever, published, read } = JSON.parse(readFileSync(process.env.CASES));
const bytes = new Uint8Array(readFileSync(model));

function fileOf(settings) {
  const manifest = manifestOf(bytes);
  const [[input, entry]] = Object.entries(manifest.tokenizers);
  for (const { inputs } of Object.values(manifest.signatures)) delete inputs[input].vocabulary_size;
  return [fileWith(bytes, manifest, { [entry]: JSON.stringify(settings) }), manifest.signatures];
}

function splitting(pattern) {
  const [[, { settings }]] = Object.entries(read);
  const pre_tokenizer = { type: "Split", pattern: { Regex: pattern }, behavior: "Isolated" };
  return { ...settings, pre_tokenizer: { ...pre_tokenizer, invert: false } };
}

for (const [name, settings] of Object.entries(refused)) {
  test(`refused: ${name}`, async () => {
    const begun = performance.now();
    await assert.rejects(loadBytes(...fileOf(settings)), {
      name: "ModelError",
      message: /The tokenizer \S+ cannot be read: it (makes|adds|has|takes)|its /,
    });
    assert.ok(performance.now() - begun < 1000);
  });
}

for (const pattern of forever) {
  test(`refused: ${pattern.slice(0, 40)}`, async () => {
    assert.throws(() => checkRegex(pattern), /may take forever/);
    await assert.rejects(loadBytes(...fileOf(splitting(pattern))), { name: "ModelError" });
  });
}

for (const pattern of published) {
  test(`read: ${pattern.slice(0, 40)}`, () => checkRegex(pattern));
}

for (const [name, { settings, texts }] of Object.entries(read)) {
  test(`read: ${name}`, async () => {
    const loaded = await loadBytes(...fileOf(settings));
    for (const { text, ids } of texts) assert.deepEqual(loaded.encode(text), ids);
  });
}

test("a text of very many tokens is too long", async () => {
  const [[, { settings }]] = Object.entries(read);
  const loaded = await loadBytes(...fileOf(settings));
  assert.throws(() => loaded.encode("two ".repeat(300_000)), { name: "TextError" });
});
