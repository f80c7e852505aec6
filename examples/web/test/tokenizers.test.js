/**
 * What model.js makes of the tokenizers in other people's files, in Node without a browser.
 *
 *     CASES=CASES.json npm run test:tokenizers
 *
 * tests/examples/test_web_files.py writes the cases: `refused`, the settings of tokenizers by name,
 * `forever` and `published`, regular expressions, `read`, a text and settings by name, and `unseen`,
 * texts with words that a tokenizer does not know, for the file `generating`, which refuses some.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { checkRegex } from "../../../keras_tfm/web/runtime/tokenizer_check.js";
import { fileWith, loadBytes, manifestOf } from "./without_browser.js";

const cases = JSON.parse(readFileSync(process.env.CASES));
const { refused, forever, published, read, unseen } = cases;
const [model, generating] = [cases.model, cases.generating].map((x) => new Uint8Array(readFileSync(x)));

function fileOf(settings, bytes = model) {
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

for (const [name, { settings, texts, unknown }] of Object.entries(unseen)) {
  test(`a text is refused if all of it is unknown: ${name}`, async () => {
    const loaded = await loadBytes(...fileOf(settings, generating));
    for (const { text, ids } of texts) assert.deepEqual(loaded.encode(text), ids);
    for (const text of unknown) {
      const message = /^(The model has never seen |There is no text to read)/;
      assert.throws(() => loaded.encode(text), { name: "TextError", message }, text);
    }
  });
}

test("a text of very many tokens is too long", async () => {
  const [[, { settings }]] = Object.entries(read);
  const loaded = await loadBytes(...fileOf(settings));
  assert.throws(() => loaded.encode("two ".repeat(300_000)), { name: "TextError" });
});
