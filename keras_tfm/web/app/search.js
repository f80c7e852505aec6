// Ranks texts by the cosine similarity of their sentence vectors to the query's.

import { begin, drawn, element, loaded, make, wait, whenSubmitted } from "./app.js";

const vectors = new Map(); // prompt and text -> its vector, of length 1

async function search(isLatest) {
  const model = await loaded("predict");
  const texts = [...new Set(element("texts").value.split("\n").map((x) => x.trim()).filter(Boolean))];
  const start = performance.now();
  const wanted = await vector(model, element("query").value.trim(), "query");
  const found = [];
  try {
    for (const text of texts) {
      found.push({ text, score: product(wanted, await vector(model, text, "document", "passage")) });
      if (texts.length > 20) wait("The texts are read.", found.length, texts.length);
      await drawn();
      if (!isLatest()) return;
    }
  } finally {
    wait(null);
  }
  const milliseconds = performance.now() - start;
  found.sort((a, b) => b.score - a.score);
  element("results").replaceChildren(...found.map(item));
  element("duration").textContent = `${milliseconds.toFixed(1)} ms`;
}

/** The vector of a text, with the first of the prompts that the file has; by default its own. */
async function vector(model, text, ...prompts) {
  const known = model.manifest.model?.head?.arguments?.prompts ?? {};
  const prompt = prompts.find((name) => Object.hasOwn(known, name));
  const key = `${prompt}\n${text}`;
  if (!vectors.has(key)) {
    const output = await model.embedText(text, { prompt });
    const norm = Math.hypot(...output) || 1;
    vectors.set(key, output.map((x) => x / norm));
  }
  return vectors.get(key);
}

function product(a, b) {
  return a.reduce((sum, x, i) => sum + x * b[i], 0);
}

function item({ text, score }) {
  const line = make("li");
  line.append(make("data", score.toFixed(2), { value: score }), ` ${text}`);
  return line;
}

whenSubmitted(search);
begin("predict");
