// Classes with their probabilities, as bars.

import { make } from "./app.js";

/** Probabilities of the classes of a model's output: logits, or what adds up to 1. */
export function classesOf(outputs, labels, softmax) {
  const rows = Object.values(outputs);
  const values = rows.find((row) => row.length > 1) ?? rows[0];
  const total = values.reduce((a, b) => a + b, 0);
  const areShares = values.every((x) => x >= 0) && Math.abs(total - 1) < 1e-3;
  const shares = areShares || values.length === 1 ? values : softmax(values);
  return [...shares]
    .map((probability, i) => ({ label: labels?.[i] ?? `class ${i}`, probability }))
    .sort((a, b) => b.probability - a.probability);
}

/** A line with the label, its probability and a bar as long as it. */
export function bar({ label, probability }) {
  const line = make("li");
  const meter = make("span", "", { className: "bar" });
  meter.style.setProperty("--share", Math.min(1, Math.max(0, probability)));
  meter.style.setProperty("--hue", hue(label));
  const number = make("data", `${(100 * probability).toFixed(1)} %`, { value: probability });
  line.append(make("span", label, { dir: "auto" }), number, meter);
  return line;
}

/** A colour for a label, always the same. */
export function hue(label) {
  let sum = 0;
  for (const character of label) sum = (sum * 31 + character.codePointAt(0)) % 360;
  return sum;
}
