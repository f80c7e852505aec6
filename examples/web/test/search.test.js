/**
 * search.html in headless Chromium: order and similarities are Python's.
 *
 *     MODELS=FOLDER EXPECTED=EXPECTED.json npm run test:search
 *
 * FOLDER holds NAME.tflite; EXPECTED has `model` (NAME), `query`, and `ranked`: texts with their
 * cosine similarity, best first. tests/examples/test_web.py makes both.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { start } from "./browser.js";

const { MODELS, EXPECTED } = process.env;
const { model, query, ranked } = JSON.parse(readFileSync(EXPECTED, "utf8"));
const requests = [];
let browser;

before(async () => {
  browser = await start(MODELS, requests);
});
after(() => browser.close());

async function searched(page) {
  await page.getByLabel("Query").fill(query);
  await page.getByLabel("Texts").fill(ranked.map(([text]) => text).sort().join("\n"));
  await page.getByRole("button", { name: "Search" }).click();
  await page.locator("#results li").first().waitFor();
  return page.locator("#results li").evaluateAll((items) =>
    items.map((x) => [x.lastChild.textContent.trim(), Number(x.firstChild.value)]),
  );
}

test("texts are ranked as in Python, with the same similarities", async (t) => {
  const page = await browser.open(`/search.html?model=${model}`);
  await page.locator("#results li, #problem:not(:empty)").first().waitFor();
  await page.locator("#results").evaluate((list) => list.replaceChildren());
  const found = await searched(page);
  assert.equal(await page.locator("#problem").textContent(), "");
  assert.deepEqual(found.map(([text]) => text), ranked.map(([text]) => text));
  for (const [i, [, score]] of found.entries()) assert.ok(Math.abs(score - ranked[i][1]) < 0.02);
  t.diagnostic(await page.locator("#duration").textContent());
  assert.ok(requests.every((url) => url.startsWith(browser.origin)));
});

test("a missing model is named", async () => {
  const page = await browser.open("/search.html?model=none");
  await page.locator("#problem:not(:empty)").waitFor();
  assert.match(await page.locator("#problem").textContent(), /none\.tflite/);
});
