/**
 * Captions of pictures in model.js, and in a page, in headless Chromium: the tokens are Python's.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:captions
 *
 * FOLDER has files and pictures; EXPECTED has the files' loops and, for each prompt, the tokens and
 * texts of the pictures. tests/examples/test_web_captions.py makes both.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { start } from "./browser.js";

const { MODELS, EXPECTED, SCREENSHOTS } = process.env;
const { files, pictures } = JSON.parse(readFileSync(EXPECTED, "utf8"));
const requests = [];
let browser;
let page;

before(async () => {
  browser = await start(MODELS, requests);
  page = await browser.open("/models/prefix_page/");
  await page.evaluate(async () => {
    const { loadModel, sampler } = await import("/model.js");
    globalThis.sampler = sampler;
    const models = new Map();
    globalThis.opened = (name) => {
      if (!models.has(name)) models.set(name, loadModel(`/models/${name}.tflite`));
      return models.get(name);
    };
    globalThis.blobOf = async (name) => {
      const response = await fetch(`/models/${name}`);
      return new Blob([await response.arrayBuffer()]);
    };
  });
});

after(() => browser.close());

for (const [name, { stepped, answers }] of Object.entries(files)) {
  test(`${name} writes Python's captions`, async () => {
    for (const { prompt, tokens, texts } of answers) {
      const found = await page.evaluate(
        async ([name, prompt, pictures]) => {
          const model = await opened(name);
          const options = prompt ? { prompt } : {};
          const found = [];
          for (const picture of pictures) found.push(await model.caption(await blobOf(picture), options));
          const { abilities } = model;
          return { abilities, answers: found.map((x) => ({ ...x, tokens: [...x.tokens] })) };
        },
        [name, prompt, pictures],
      );
      assert.deepEqual(found.abilities, ["caption"]);
      assert.deepEqual(found.answers.map((x) => x.tokens), tokens);
      assert.deepEqual(found.answers.map((x) => x.text), texts);
      assert.ok(found.answers.every((x) => x.milliseconds > 0));
    }
  });

  test(`${name} ${stepped ? "writes piece by piece" : "has no pieces"}, and chooses`, async () => {
    const found = await page.evaluate(
      async ([name, picture, prompt]) => {
        const model = await opened(name);
        const blob = await blobOf(picture);
        const options = prompt ? { prompt } : {};
        const pieces = async () => {
          const found = [];
          for await (const piece of model.streamCaption(blob, options)) found.push(piece);
          return found;
        };
        const choose = sampler({ temperature: 0 });
        const results = [pieces(), model.caption(blob, { ...options, choose }).then(({ text }) => text)];
        return Promise.all(results.map((x) => x.catch(String)));
      },
      [name, pictures[0], answers[0].prompt],
    );
    const [text] = answers[0].texts;
    if (stepped) {
      assert.ok(found[0].length > 1);
      assert.deepEqual([found[0].join(""), found[1]], [text, text]);
    } else {
      assert.match(found[0], /^ModelError: The file was exported without decode: call caption\.$/);
      assert.match(found[1], /^ModelError: The file was exported without decode: leave out choose/);
    }
  });
}

test("what is no picture, and wrong prompts, are refused in words", async () => {
  const errors = await page.evaluate(async (picture) => {
    const [whole, stepped] = [await opened("prefix_whole"), await opened("prefix_stepped")];
    const joint = await opened("joint_whole");
    const blob = await blobOf(picture);
    const attempts = [
      whole.caption("two four"),
      stepped.caption(new File(["two four"], "text.png")),
      whole.caption(blob, { prompt: [1, 2, 3, 4] }),
      stepped.caption(blob, { prompt: [] }),
      stepped.caption(blob, { prompt: [1, 13] }),
      joint.caption(blob, { prompt: [2, 6, 6, 6, 6] }),
      whole.generate("two"),
      stepped.stream("two").next(),
      stepped.predictImages(blob),
      stepped.session && new Promise((resolve) => resolve(stepped.session())),
    ];
    return Promise.all(attempts.map((attempt) => attempt.then(String, String)));
  }, pictures[0]);
  const messages = [
    /^PictureError: A picture must be a File or Blob/,
    /^PictureError: text\.png is not a picture/,
    /^TextError: A prompt of this file must have 1 to 3 tokens, not 4\.$/,
    /^TextError: A prompt of this file must have 1 to 10 tokens, not 0\.$/,
    /^TextError: There is no token 13\.$/,
    /^TextError: A prompt of this file must have text after its last picture\.$/,
    /^ModelError: The model writes text for pictures: call caption\.$/,
    /^ModelError: The model writes text for pictures: call caption\.$/,
    /^ModelError: The file cannot predictImages: it has the signatures encode, prefill_3, decode\.$/,
    /^ModelError: The model writes text for pictures: call caption\.$/,
  ];
  assert.equal(errors.length, messages.length);
  for (const [i, message] of messages.entries()) assert.match(errors[i], message);
});

test("the page shows the caption of a picture", async (t) => {
  const { answers } = files.prefix_stepped;
  for (const { prompt, texts } of answers) {
    const asked = prompt ? `?prompt=${prompt}` : "";
    const page = await browser.open(`/models/prefix_page/${asked}`);
    for (const [i, picture] of pictures.entries()) {
      if (!texts[i]) continue;
      await page.getByLabel("Picture", { exact: true }).setInputFiles(join(MODELS, picture));
      await page.locator("#caption", { hasText: new RegExp(`^${texts[i]}$`) }).waitFor();
    }
    assert.equal(await page.locator("#problem").textContent(), "");
    assert.equal(await page.locator("#results li").count(), 0);
    t.diagnostic(await page.locator("#duration").textContent());
    if (SCREENSHOTS) await page.screenshot({ path: `${SCREENSHOTS}/caption.png`, fullPage: true });
  }
  assert.ok(requests.every((url) => url.startsWith(browser.origin) || url.startsWith("blob:")));
});
