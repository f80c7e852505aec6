/**
 * Files of several models in model.js, and emoji.html, in headless Chromium: vectors and order are
 * Python's.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:pairs
 *
 * FOLDER has pair.tflite, pair.json, pair.png, pair.f32, sentences.tflite and a picture; EXPECTED has
 * its name, its vector, texts with their vectors, the order of the emoji for each text, and
 * `sentences`, texts with the first `dimensions` of their vectors.
 * tests/examples/test_web_pairs.py makes both.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { start } from "./browser.js";

const { MODELS, EXPECTED, SCREENSHOTS } = process.env;
const { picture, image, texts, sentences } = JSON.parse(readFileSync(EXPECTED, "utf8"));
const requests = [];
let browser;
let page;

before(async () => {
  browser = await start(MODELS, requests);
  page = await browser.open("/emoji.html?model=pair");
  await page.evaluate(async () => {
    const { loadModel } = await import("/model.js");
    globalThis.pair = await loadModel("models/pair.tflite");
  });
});

after(() => browser.close());

function close(found, wanted) {
  assert.equal(found.length, wanted.length);
  const largest = Math.max(...found.map((x, i) => Math.abs(x - wanted[i])));
  assert.ok(largest < 1e-5, `${largest}`);
}

test("each model of the file works by its name", async () => {
  const { names, abilities, vector } = await page.evaluate(async (text) => {
    const { models } = pair;
    return {
      names: Object.keys(models),
      abilities: Object.values(models).map((model) => model.abilities),
      vector: [...Object.values(await models.text.predict(text))[0]],
    };
  }, texts[0].text);
  assert.deepEqual(names, ["image", "text"]);
  assert.deepEqual(abilities, [["predictImages"], ["predict"]]);
  close(vector, texts[0].vector);
});

test("embedText and embedImage find their models", async () => {
  for (const { text, vector } of texts) {
    close(await page.evaluate(async (text) => [...(await pair.embedText(text))], text), vector);
  }
  const found = await page.evaluate(async (name) => {
    const response = await fetch(`models/${name}`);
    return [...(await pair.embedImage(new Blob([await response.arrayBuffer()])))];
  }, picture);
  close(found, image);
});

test("sentence embeddings are truncated, and shortened, as in Python", async () => {
  for (const { text, dimensions, vector } of sentences) {
    const found = await page.evaluate(
      async ([text, dimensions]) => {
        const { loadModel } = await import("/model.js");
        globalThis.sentences ??= await loadModel("models/sentences.tflite");
        return [...(await sentences.embedText(text, { dimensions: dimensions ?? undefined }))];
      },
      [text, dimensions],
    );
    close(found, vector);
  }
});

test("a signature of no model is refused", async () => {
  const message = await page.evaluate(async () => {
    const { loadModel } = await import("/model.js");
    return loadModel("models/stray.tflite").catch((error) => error.message);
  });
  assert.match(message, /signatures\.text_6\.model is "other"/);
});

test("the page shows the most similar emoji first", async (t) => {
  for (const { text, order } of texts) {
    await page.getByRole("textbox").fill(text);
    const first = page.locator("#results span").first();
    await page.waitForFunction(
      ([text, emoji]) =>
        document.querySelector("#query").value === text &&
        document.querySelector("#results span")?.getAttribute("aria-label") === emoji,
      [text, order[0]],
      { polling: 100 }, // and not once for each frame that is drawn
    );
    assert.equal(await first.getAttribute("aria-label"), order[0]);
    const shown = await page
      .locator("#results span")
      .evaluateAll((all) => all.map((x) => x.getAttribute("aria-label")));
    assert.deepEqual(shown, order.slice(0, shown.length));
  }
  assert.equal(await page.locator("#problem").textContent(), "");
  t.diagnostic(await page.locator("#duration").textContent());
  if (SCREENSHOTS) await page.screenshot({ path: `${SCREENSHOTS}/emoji.png`, fullPage: true });
  assert.ok(requests.every((url) => url.startsWith(browser.origin)));
});

test("a missing model is named", async () => {
  const other = await browser.open("/emoji.html?model=none");
  await other.locator("#problem:not(:empty)").waitFor();
  assert.match(await other.locator("#problem").textContent(), /none\./);
});
