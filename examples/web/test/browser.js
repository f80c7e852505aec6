/** A server and a headless Chromium, for the tests and the measurement. */

import { execFileSync } from "node:child_process";

import { chromium } from "playwright-core";

import { serve } from "../server.js";

/**
 * @param {string} models - the folder of .tflite files.
 * @param {string[]} requests - every address that a page asks for is added to it.
 * @param {string[]} flags - further ones for Chromium.
 * @returns `open(path, options)`, which makes a page, `origin`, and `close`.
 */
export async function start(models, requests = [], flags = []) {
  const executablePath =
    process.env.CHROMIUM || execFileSync("which", ["chromium"], { encoding: "utf8" }).trim();
  const server = await serve(models, 0);
  const origin = `http://127.0.0.1:${server.address().port}`;
  // Chromium refuses to be sandboxed for root.
  const args = [...(process.getuid?.() === 0 ? ["--no-sandbox"] : []), ...flags];
  const browser = await chromium.launch({ executablePath, args });
  return {
    origin,
    version: browser.version(),
    async open(path = "/", options = {}) {
      const context = await browser.newContext({ locale: "en-GB", ...options });
      context.on("request", (request) => requests.push(request.url()));
      const page = await context.newPage();
      await page.goto(origin + path);
      return page;
    },
    async close() {
      await browser.close();
      server.closeAllConnections();
      server.close();
    },
  };
}

/** Runs all texts in the page: their ids, the tokens, and the milliseconds of each. */
export function generateAll(page, file, texts, threads = 1) {
  return page.evaluate(
    async ({ file, texts, threads }) => {
      const { loadModel } = await import("/model.js");
      const model = await loadModel(`models/${file}.tflite`, { threads });
      const results = { ids: [], tokens: [], answers: [], milliseconds: [] };
      for (const text of texts) {
        const { text: answer, tokens, milliseconds } = await model.generate(text);
        results.ids.push(model.encode(text));
        results.tokens.push([...tokens]);
        results.answers.push(answer);
        results.milliseconds.push(milliseconds);
      }
      model.delete();
      return results;
    },
    { file, texts, threads },
  );
}
