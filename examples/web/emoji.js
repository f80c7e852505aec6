// emoji.html: finds pictures by the similarity of their vectors to that of a word, with a CLIP.
// "?model=NAME" chooses models/NAME.tflite, with NAME.json (codes and layout), NAME.png (a sheet of
// the pictures) and NAME.f32 (their vectors), which examples/emoji_search.py writes.

const element = (id) => document.getElementById(id);
const name = new URLSearchParams(location.search).get("model") ?? "emoji_search";
const SHOWN = 24;
const EXAMPLES = [
  ["en", "rainy day"], ["de", "Geburtstag"], ["fr", "fromage"], ["es", "corazón roto"],
  ["pl", "rower"], ["el", "γάτα"], ["uk", "потяг"], ["tr", "deniz kaplumbağası"], ["ar", "قمر"],
  ["he", "כדורגל"], ["hi", "आम"], ["th", "ช้าง"], ["ja", "お寿司"], ["zh", "熊猫"],
];
const { loadModel, ModelError, TextError } = await import("./model.js").catch((error) => {
  say(`This page's packages did not load; "npm ci" installs them. (${error.message})`);
  throw error;
});
let loading = null; // promise of the model and the pictures
let turn = 0; // only the latest query is answered

async function search() {
  const mine = ++turn;
  say("");
  try {
    const { model, pictures } = await loaded();
    const query = element("query").value.trim();
    if (mine !== turn || !query) return;
    const start = performance.now();
    const wanted = await model.embedText(query);
    const found = pictures.emoji.map((emoji, i) => ({ emoji, i, score: similarity(pictures, i, wanted) }));
    found.sort((a, b) => b.score - a.score);
    const milliseconds = performance.now() - start;
    if (mine !== turn) return;
    element("results").replaceChildren(...found.slice(0, SHOWN).map((x) => tile(x, pictures)));
    element("duration").textContent = `${milliseconds.toFixed(1)} ms`;
  } catch (error) {
    if (mine !== turn) return;
    say(error.message);
    if (!(error instanceof ModelError || error instanceof TextError)) console.error(error);
  }
}

async function loaded() {
  element("loading").hidden = Boolean(loading);
  loading ??= load();
  try {
    return await loading;
  } catch (error) {
    loading = null; // the next query tries again
    throw error;
  } finally {
    element("loading").hidden = true;
  }
}

async function load() {
  const onProgress = (bytes, total) =>
    Object.assign(element("progress"), { max: total, value: bytes });
  const [model, pictures, vectors] = await Promise.all([
    loadModel(`models/${name}.tflite`, { onProgress }),
    fetched(`models/${name}.json`).then((response) => response.json()),
    fetched(`models/${name}.f32`).then((response) => response.arrayBuffer()),
  ]);
  return { model, pictures: { ...pictures, vectors: new Float32Array(vectors) } };
}

async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new ModelError(`The server has no file ${url}.`);
  return response;
}

/** The inner product of picture i and a vector, both of length 1. */
function similarity({ vectors }, i, wanted) {
  let sum = 0;
  for (let j = 0, at = i * wanted.length; j < wanted.length; j++) sum += vectors[at + j] * wanted[j];
  return sum;
}

function tile({ emoji, i, score }, { columns, size }) {
  const item = document.createElement("li");
  const picture = document.createElement("span");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", emoji);
  picture.style.width = picture.style.height = `${size}px`;
  picture.style.backgroundImage = `url("models/${encodeURIComponent(name)}.png")`;
  picture.style.backgroundPosition = `-${(i % columns) * size}px -${Math.floor(i / columns) * size}px`;
  const number = document.createElement("data");
  number.value = score;
  number.textContent = score.toFixed(2);
  item.append(picture, number);
  return item;
}

function say(problem) {
  element("problem").textContent = problem;
}

for (const [language, text] of EXAMPLES) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", lang: language, textContent: text });
  button.addEventListener("click", () => {
    element("query").value = text;
    search();
  });
  element("examples").append(button, " ");
}
element("query").addEventListener("input", search);
element("question").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
search();
