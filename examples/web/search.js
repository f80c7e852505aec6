// search.html: ranks texts by the cosine similarity of their sentence vectors to the query's.
// "?model=NAME" chooses models/NAME.tflite, a file with `models.sentence_embedding`.

const element = (id) => document.getElementById(id);
const name = new URLSearchParams(location.search).get("model") ?? "minilm";
const { loadModel, ModelError, TextError } = await import("./model.js").catch((error) => {
  say(`This page's packages did not load; "npm ci" installs them. (${error.message})`);
  throw error;
});
const vectors = new Map(); // text -> its vector, of length 1
let loading = null; // promise of the model
let turn = 0; // only the latest query is answered

async function search() {
  const mine = ++turn;
  say("");
  try {
    const model = await loaded();
    const texts = element("texts").value.split("\n").map((x) => x.trim()).filter(Boolean);
    const start = performance.now();
    const wanted = await vector(model, element("query").value.trim());
    const found = [];
    for (const text of new Set(texts)) {
      found.push({ text, score: product(wanted, await vector(model, text)) });
    }
    const milliseconds = performance.now() - start;
    if (mine !== turn) return;
    found.sort((a, b) => b.score - a.score);
    element("results").replaceChildren(...found.map(item));
    element("duration").textContent = `${milliseconds.toFixed(1)} ms`;
  } catch (error) {
    if (mine !== turn) return;
    say(error.message);
    if (!(error instanceof ModelError || error instanceof TextError)) console.error(error);
  }
}

async function loaded() {
  element("loading").hidden = Boolean(loading);
  loading ??= loadModel(`models/${name}.tflite`, {
    onProgress: (bytes, total) => Object.assign(element("progress"), { max: total, value: bytes }),
  });
  try {
    return await loading;
  } catch (error) {
    loading = null; // the next query tries again
    throw error;
  } finally {
    element("loading").hidden = true;
  }
}

async function vector(model, text) {
  if (!vectors.has(text)) {
    const output = await model.embedText(text);
    const norm = Math.hypot(...output);
    vectors.set(text, output.map((x) => x / norm));
  }
  return vectors.get(text);
}

function product(a, b) {
  return a.reduce((sum, x, i) => sum + x * b[i], 0);
}

function item({ text, score }) {
  const line = document.createElement("li");
  const number = document.createElement("data");
  number.value = score;
  number.textContent = score.toFixed(2);
  line.append(number, ` ${text}`);
  return line;
}

function say(problem) {
  element("problem").textContent = problem;
}

element("question").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
search();
