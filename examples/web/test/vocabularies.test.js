/**
 * model.js with vocabularies as large as those of Gemma and XLM-R, in Node without a browser.
 *
 *     MODEL=FILE.tflite npm run test:vocabularies
 *
 * tests/examples/test_web_files.py exports the file, a classifier of texts with a tokenizer.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { fileWith, loadBytes, manifestOf, softmax } from "./without_browser.js";

const SIZE = 300_000; // more than Gemma's 262,144
const bytes = new Uint8Array(readFileSync(process.env.MODEL));
const words = Array.from({ length: SIZE }, (_, i) => `w${i.toString(36)}`);
words[0] = "[UNK]";
const vocab = Object.fromEntries(words.map((word, i) => [word, i]));
const pairs = Array.from({ length: 26 ** 3 }, (_, i) => {
  const letters = [i % 26, Math.floor(i / 26) % 26, Math.floor(i / 676)].map((n) => 97 + n);
  return String.fromCharCode(...letters);
});
const MODELS = {
  WordLevel: { type: "WordLevel", vocab, unk_token: "[UNK]" },
  WordPiece: { type: "WordPiece", vocab, unk_token: "[UNK]", continuing_subword_prefix: "##" },
  BPE: {
    type: "BPE",
    vocab: { ...Object.fromEntries(words.slice(0, SIZE - pairs.length).map((word, i) => [word, i])),
      ...Object.fromEntries(pairs.map((pair, i) => [pair, SIZE - pairs.length + i])) },
    merges: pairs.flatMap((pair) => [[pair[0], pair[1]], [pair.slice(0, 2), pair[2]]]),
    unk_token: "[UNK]",
  },
  Unigram: { type: "Unigram", vocab: words.map((word, i) => [word, -i]), unk_id: 0 },
};

function fileOf(model, size) {
  const manifest = manifestOf(bytes);
  const [[input, entry]] = Object.entries(manifest.tokenizers);
  for (const signature of Object.values(manifest.signatures)) {
    signature.inputs[input].vocabulary_size = size;
  }
  const tokenizer = {
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: { type: "WhitespaceSplit" },
    post_processor: null,
    decoder: null,
    model,
  };
  return [fileWith(bytes, manifest, { [entry]: JSON.stringify(tokenizer) }), manifest.signatures];
}

for (const [kind, model] of Object.entries(MODELS)) {
  test(`a ${kind} vocabulary of ${SIZE} tokens is read`, async () => {
    const loaded = await loadBytes(...fileOf(model, SIZE));
    const text = kind === "BPE" ? "abc" : words[SIZE - 1];
    const ids = loaded.encode(text);
    assert.deepEqual(ids, [kind === "BPE" ? model.vocab.abc : SIZE - 1]);
    const outputs = await loaded.predict(text);
    assert.ok(Object.values(outputs)[0].length);
    await assert.rejects(loadBytes(...fileOf(model, SIZE - 1)), {
      name: "ModelError",
      message: `The file's tokenizer has ${SIZE} tokens, its model only ${SIZE - 1}.`,
    });
  });
}

test("a tokenizer of 100 MB is refused before it is parsed", async () => {
  const manifest = manifestOf(bytes);
  const [[, entry]] = Object.entries(manifest.tokenizers);
  const file = fileWith(bytes, manifest, { [entry]: " ".repeat(1e8) });
  await assert.rejects(loadBytes(file, manifest.signatures), {
    name: "ModelError",
    message: `The tokenizer ${entry} has 100 MB, and this page reads at most 64.`,
  });
});

test("the probabilities of so many tokens add up to 1", () => {
  const chances = softmax(new Float32Array(SIZE).fill(3));
  assert.ok(Math.abs(chances.reduce((a, b) => a + b) - 1) < 1e-6);
});
