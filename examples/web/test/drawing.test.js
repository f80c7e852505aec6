/**
 * Drawing in model.js, and drawing.html, in headless Chromium: the codes and pixels are Python's.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:drawing
 *
 * FOLDER has sampled.tflite (a batch of 4), row.tflite (of 1), whole.tflite (the loop in the file),
 * and judged.tflite (with CLIP's encoders); EXPECTED has the most probable codes of texts and their
 * pixels, and the scores of pictures.
 * tests/examples/test_web_drawing.py makes both.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { start } from "./browser.js";

const { MODELS, EXPECTED, SCREENSHOTS } = process.env;
const { drawn, scores } = JSON.parse(readFileSync(EXPECTED, "utf8"));
const requests = [];
let browser;
let page;

before(async () => {
  browser = await start(MODELS, requests);
  page = await browser.open("/drawing.html?model=sampled");
  await page.evaluate(async () => {
    const { loadModel, sampler } = await import("/model.js");
    const models = new Map();
    globalThis.opened = (name) => {
      if (!models.has(name)) models.set(name, loadModel(`models/${name}.tflite`));
      return models.get(name);
    };
    globalThis.sampler = sampler;
    globalThis.draw = async (name, text, { judge, temperature, seed, ...options } = {}) => {
      const model = await opened(name);
      if (judge) options.judge = await opened(judge);
      if (temperature !== undefined) options.choose = sampler({ temperature, seed });
      const found = await model.draw(text, options);
      return found.map(({ image, codes, score }) => ({ codes: [...codes], score, pixels: [...image.data] }));
    };
  });
});

after(() => browser.close());

const draw = (...given) => page.evaluate((given) => draw(...given), given);

function comparePixels(found, wanted) {
  assert.equal(found.length, (wanted.length / 3) * 4);
  for (let i = 0; i < found.length; i++) {
    const value = i % 4 === 3 ? 255 : wanted[Math.floor(i / 4) * 3 + (i % 4)];
    // Rounded after products in another order: a value near a half may differ by one.
    assert.ok(Math.abs(found[i] - value) <= 1, `${i}: ${found[i]} ${value}`);
  }
}

for (const { text, guidance, codes, pixels } of drawn) {
  test(`${text} with guidance ${guidance} is drawn as Python does`, async () => {
    const options = { guidance, candidates: 3, temperature: 0 };
    for (const one of await draw("sampled", text, options)) {
      assert.deepEqual(one.codes, codes);
      assert.equal(one.score, null);
      comparePixels(one.pixels, pixels);
    }
    if (guidance !== 1) return;
    const file = await draw("whole", text, { candidates: 2 });
    assert.deepEqual(file.map((one) => one.codes), [codes, codes]);
    assert.deepEqual((await draw("row", text, { temperature: 0 })).map((x) => x.codes), [codes]);
  });
}

test("a seed repeats candidates, and more than the batch holds are drawn", async () => {
  const options = { candidates: 9, guidance: 2, temperature: 1 };
  const [first, again, other] = [
    await draw("sampled", "two", { ...options, seed: 3 }),
    await draw("sampled", "two", { ...options, seed: 3 }),
    await draw("sampled", "two", { ...options, seed: 4 }),
  ].map((found) => found.map((one) => String(one.codes)));
  assert.deepEqual(first, again);
  assert.notDeepEqual(first, other);
  assert.equal(first.length, 9);
  assert.ok(new Set(first).size > 1);
});

test("CLIP sorts the candidates, of the file or of one beside it", async () => {
  const options = { candidates: 6, temperature: 1, seed: 5 };
  const own = await draw("judged", "two", options);
  const beside = await draw("sampled", "two", { ...options, judge: "judged" });
  const plain = await draw("sampled", "two", options);
  assert.deepEqual(own, beside);
  const codes = (found) => found.map((one) => String(one.codes)).sort();
  assert.deepEqual(codes(own), codes(plain));
  const found = own.map((one) => one.score);
  assert.deepEqual(found, found.toSorted((a, b) => b - a));
  assert.ok(found[0] > found[5]);
});

test("the scores are Python's", async () => {
  for (const { text, codes, score } of scores) {
    const found = await page.evaluate(
      async ([text, codes]) => {
        const { decoder, image, text: words } = (await opened("judged")).models;
        const [picture] = await decoder.paint([codes]);
        const [a, b] = [await image.embedImage(picture), await words.embedText(text)];
        const inner = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
        return inner(a, b) / Math.sqrt(inner(a, a) * inner(b, b));
      },
      [text, codes],
    );
    // A pixel may differ by one of 255.
    assert.ok(Math.abs(found - score) < 1e-3, `${found} ${score}`);
  }
});

test("steps are told, and codes come one by one", async () => {
  const [told, codes] = await page.evaluate(async () => {
    const told = [];
    const { dalle } = (await opened("sampled")).models;
    await dalle.drawCodes("two", { candidates: 5, onProgress: (...numbers) => told.push(numbers) });
    const codes = [];
    for await (const step of dalle.streamCodes("two", { rows: 3 })) codes.push(step);
    return [told, codes];
  });
  assert.deepEqual(told, Array.from({ length: 12 }, (_, i) => [i + 1, 12])); // two runs of six steps
  assert.equal(codes.length, 6);
  assert.ok(codes.every((step) => step.length === 3 && step.every((code) => code >= 0 && code < 7)));
});

test("what cannot be drawn is refused in words", async () => {
  const errors = await page.evaluate(async () => {
    const [sampled, row] = [await opened("sampled"), await opened("row")];
    const { dalle, decoder } = sampled.models;
    const attempts = [
      sampled.draw(" "),
      sampled.draw("two two two two"),
      sampled.draw("two", { candidates: 0 }),
      sampled.draw("two", { guidance: NaN }),
      sampled.draw("two", { choose: () => 7 }),
      row.draw("two", { guidance: 2 }),
      dalle.generate("two"),
      dalle.streamCodes("two", { rows: 5 }).next(),
      decoder.paint([[0, 1, 2, 3, 4]]),
      decoder.paint([[0, 1, 2, 3, 4, 7]]),
      decoder.drawCodes("two"),
    ];
    return Promise.all(attempts.map((attempt) => attempt.then(String, String)));
  });
  const messages = [
    /^TextError: There is no text to read\.$/,
    /^TextError: The text is too long: it has 4 tokens, and the model reads 3\.$/,
    /^RangeError: the number of pictures must be 1 or more: 0$/,
    /^RangeError: guidance must be a number: NaN$/,
    /^RangeError: choose must return a token, 0 to 6: 7$/,
    /^ModelError: Guidance takes two rows per picture, and the file was exported for one row\.$/,
    /^ModelError: The model draws: call draw of the file, or drawCodes\.$/,
    /^RangeError: the number of pictures must be 1 to 4: 5$/,
    /^ModelError: A picture must have 6 codes, 0 to 6: 0,1,2,3,4$/,
    /^ModelError: A picture must have 6 codes, 0 to 6: 0,1,2,3,4,7$/,
    /^ModelError: The file cannot draw: it has the signatures decoder\.$/,
  ];
  assert.equal(errors.length, messages.length);
  for (const [i, message] of messages.entries()) assert.match(errors[i], message);
});

// --- The page ----------------------------------------------------------------------------------

const pixelsOf = (page) =>
  page.locator("#results canvas").evaluateAll((all) =>
    all.map((x) => [...x.getContext("2d").getImageData(0, 0, x.width, x.height).data]),
  );

test("the page draws on canvases", async (t) => {
  const page = await browser.open("/drawing.html?model=sampled&judge=judged");
  const { text, guidance, pixels } = drawn.at(-1);
  await page.getByLabel("A few words").fill(text);
  await page.getByLabel("Guidance").fill(String(guidance));
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Pictures").fill("5");
  await page.getByRole("button", { name: "Draw" }).click();
  await page.locator("#duration:not(:empty)").waitFor();
  const found = await pixelsOf(page);
  assert.equal(found.length, 5);
  for (const picture of found) comparePixels(picture, pixels);
  assert.equal(await page.locator("#results data").count(), 5);
  assert.match(await page.locator("#duration").textContent(), /^the most similar .* \d+ ms$/);
  assert.equal(await page.locator("#loading").isVisible(), false);
  t.diagnostic(await page.locator("#duration").textContent());
  await page.getByLabel("Temperature").fill("1");
  await page.getByLabel("Seed").fill("2");
  await page.getByRole("button", { name: "Draw" }).click();
  await page.waitForFunction(
    (first) => {
      const canvas = document.querySelector("#results canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return String([...data]) !== first;
    },
    String(found[0]),
    { polling: 100 }, // and not once for each frame that is drawn
  );
  if (SCREENSHOTS) await page.screenshot({ path: `${SCREENSHOTS}/drawing.png`, fullPage: true });
  await page.getByLabel("A few words").fill(" ");
  await page.getByRole("button", { name: "Draw" }).click();
  await page.locator("#problem:not(:empty)").waitFor();
  assert.match(await page.locator("#problem").textContent(), /^There is nothing to draw/);
});

test("the page fits a phone, and names a missing model; nothing leaves the origin", async () => {
  const page = await browser.open("/drawing.html?model=none", {
    viewport: { width: 360, height: 740 },
  });
  await page.locator("#problem:not(:empty)").waitFor();
  assert.match(await page.locator("#problem").textContent(), /none\.tflite/);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
  assert.ok(requests.every((url) => url.startsWith(browser.origin)));
});
