// The classes of a text, or of a pair of texts.

import { begin, element, library, loaded, make, whenSubmitted } from "./app.js";
import { bar, classesOf } from "./bars.js";

const TOP = 10; // classes that are shown

async function classify(isLatest) {
  const model = await loaded("predict");
  const { softmax } = await library();
  const [text, second] = ["text", "second"].map((id) => element(id).value.trim());
  const start = performance.now();
  const outputs = await model.predict(second ? [text, second] : text);
  const milliseconds = performance.now() - start;
  if (!isLatest()) return;
  const found = classesOf(outputs, model.labels, softmax).slice(0, TOP);
  // Of one output there is no share: it is a score, as of a reranker.
  const isScore = found.length === 1;
  element("results").replaceChildren(...(isScore ? [score(found[0])] : found.map(bar)));
  element("duration").textContent = `${milliseconds.toFixed(1)} ms`;
}

function score({ label, probability: value }) {
  const line = make("li");
  line.append(make("span", label, { dir: "auto" }), make("data", value.toFixed(3), { value }));
  return line;
}

/** Whether the file reads pairs: it has an input for the segment of each token. */
function readsPairs({ manifest }) {
  const signatures = Object.values(manifest.signatures);
  return signatures.some(({ inputs }) => Object.values(inputs).some((x) => x.segments_of));
}

whenSubmitted(classify);
begin("predict").then((model) => {
  if (model) element("of-second").hidden = !readsPairs(model);
});
