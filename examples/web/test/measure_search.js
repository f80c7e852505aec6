/**
 * Prints how fast the page emoji.html answers texts in Chromium, ranking included.
 *
 *     npm run measure:search -- FOLDER [MODEL]
 *
 * FOLDER has the files of examples/emoji_search.py. The page uses one WASM thread.
 */

import { start } from "./browser.js";

const [models, name = "emoji_search"] = process.argv.slice(2);
const browser = await start(models);
const page = await browser.open(`/emoji.html?model=${name}`);
await page.waitForSelector("#examples button");
const texts = await page.$$eval("#examples button", (found) => found.map((x) => x.textContent));
const milliseconds = [];
for (const [round, text] of [...texts, ...texts].entries()) {
  const found = await page.evaluate(async (text) => {
    const duration = document.getElementById("duration");
    duration.textContent = "";
    document.getElementById("query").value = text;
    document.getElementById("question").requestSubmit();
    while (!duration.textContent) await new Promise((resolve) => setTimeout(resolve, 5));
    return parseFloat(duration.textContent);
  }, text);
  if (round >= texts.length) milliseconds.push(found); // the browser's compiler takes its time
}
await browser.close();
milliseconds.sort((a, b) => a - b);
const [median, most] = [milliseconds.length >> 1, milliseconds.length - 1].map((i) => milliseconds[i]);
console.log(
  `Chromium, one WASM thread: ${median.toFixed(1)} ms a query (median of ${milliseconds.length}), ` +
    `at most ${most.toFixed(1)} ms`,
);
