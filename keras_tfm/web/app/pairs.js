// Pictures and texts compared by the vectors of a model such as CLIP: for each picture the most
// similar words, and with one text the most similar pictures.

import { begin, drawn, element, library, loaded, make, wait, whenSubmitted } from "./app.js";
import { bar } from "./bars.js";

const SCALE = 100; // CLIP's largest, which its training reaches

async function compare(isLatest) {
  const model = await loaded();
  const { softmax } = await library();
  const files = [...element("files").files];
  const texts = [...new Set(element("texts").value.split("\n").map((x) => x.trim()).filter(Boolean))];
  const start = performance.now();
  if (!files.length) throw new RangeError("Choose one or more pictures.");
  if (!texts.length) throw new RangeError("Write words to compare the pictures with, one line for each text.");
  const words = [];
  for (const text of texts) words.push(unit(await model.embedText(text)));
  const found = [];
  try {
    for (const file of files) {
      wait("The pictures are read.", found.length, files.length);
      const vector = unit(await model.embedImage(file));
      found.push({ file, scores: words.map((other) => product(vector, other)) });
      await drawn();
      if (!isLatest()) return;
    }
  } finally {
    wait(null);
  }
  const milliseconds = performance.now() - start;
  if (texts.length === 1) found.sort((a, b) => b.scores[0] - a.scores[0]);
  const [scale = SCALE, bias] = ["scale", "bias"].map((name) => learned(model, name));
  // Of a SigLIP, which has a bias, each text has a probability of its own.
  const own = (scores) => scores.map((x) => 1 / (1 + Math.exp(-(scale * x + bias))));
  const rank = ({ file, scores }) => {
    const shares = bias === undefined ? softmax(scores.map((x) => scale * x)) : own(scores);
    const lines = texts.map((label, i) => ({ label, probability: shares[i] }));
    lines.sort((a, b) => b.probability - a.probability);
    return figure(file, texts.length === 1 ? [score(scores[0])] : lines.map(bar));
  };
  for (const image of element("results").querySelectorAll("img")) URL.revokeObjectURL(image.src);
  element("results").replaceChildren(...found.map(rank));
  element("seen").hidden = false;
  element("duration").textContent = `${milliseconds.toFixed(1)} ms`;
}

function figure(file, lines) {
  const one = make("figure");
  const list = make("ol", "", { className: "bars" });
  list.append(...lines);
  const image = make("img", "", { src: URL.createObjectURL(file), alt: file.name });
  one.append(image, make("figcaption", file.name, { dir: "auto" }), list);
  return one;
}

function score(value) {
  const line = make("li");
  line.append(make("span", "similarity"), make("data", value.toFixed(3), { value }));
  return line;
}

/** The factor of the similarities, or what is added to them, if the model has learned it. */
function learned({ models = {} }, name) {
  const values = Object.values(models).map(({ manifest }) => manifest.model?.head?.arguments?.[name]);
  return values.find((x) => typeof x === "number");
}

function unit(vector) {
  const norm = Math.max(Math.hypot(...vector), 1e-12);
  return Array.from(vector, (x) => x / norm);
}

function product(a, b) {
  return a.reduce((sum, x, i) => sum + x * b[i], 0);
}

whenSubmitted(compare);
begin();
