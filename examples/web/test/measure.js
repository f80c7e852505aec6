/**
 * Prints how fast Chromium answers the texts of expected.py, one after another, text to text.
 *
 *     npm run measure -- FOLDER EXPECTED.json [THREADS ...]
 */

import { readFileSync } from "node:fs";

import { generateAll, start } from "./browser.js";

const [models, expected, ...threads] = process.argv.slice(2);
const { texts } = JSON.parse(readFileSync(expected, "utf8"));
const browser = await start(models);
for (const count of threads.length ? threads.map(Number) : [1]) {
  for (const file of ["float32", "int8"]) {
    const page = await browser.open(`/?threads=${count}`);
    await generateAll(page, file, texts, count); // the browser's compiler takes its time
    const { tokens, milliseconds } = await generateAll(page, file, texts, count);
    const steps = tokens.flat().filter(Boolean).length - tokens.length; // the start token is given
    const total = milliseconds.reduce((a, b) => a + b, 0);
    const median = milliseconds.sort((a, b) => a - b)[milliseconds.length >> 1];
    console.log(
      `Chromium ${file.padEnd(8)} ${median.toFixed(2).padStart(6)} ms an answer, ` +
        `${((1000 * steps) / total).toFixed(0).padStart(6)} tokens/s, threads: ${count}`,
    );
    await page.context().close();
  }
}
await browser.close();
