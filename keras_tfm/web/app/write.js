// Text for a text: a translation, a summary, or the continuation of a prompt; streamed where the file
// is stepped.

import { begin, drawn, element, library, loaded, run, whenSubmitted } from "./app.js";

// Tokens that name a language, such as "[de]" or "[en_GB]".
const TAG = /^\[([a-z]{2,3}(?:[_-][A-Za-z]+)?|any)\]$/;
let stopped = false;

async function write(isLatest) {
  const model = await loaded("stream", "generate");
  const language = element("of-language").hidden ? "" : element("language").value;
  const text = `${language}${element("text").value.trim()}`;
  element("answer").textContent = element("duration").textContent = "";
  stopped = false;
  const start = performance.now();
  if (model.abilities.includes("stream")) await stream(model, text, isLatest);
  else element("answer").textContent = (await model.generate(text)).text;
  if (!isLatest()) return;
  const milliseconds = performance.now() - start;
  element("duration").textContent = `${milliseconds.toFixed(1)} ms${stopped ? ", stopped" : ""}`;
}

async function stream(model, text, isLatest) {
  const temperature = Number(element("temperature").value);
  const { sampler } = await library();
  const options = temperature ? { choose: sampler({ temperature }) } : {};
  for await (const piece of model.stream(text, options)) {
    if (!isLatest()) return;
    element("answer").textContent += piece;
    await drawn();
    if (stopped) return;
  }
}

function languageName(tag) {
  if (tag === "any") return "Not told";
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(tag.replace("_", "-"));
  } catch {
    return tag;
  }
}

/** The languages that the file's tokenizer has a token for. */
function offerLanguages({ specialTokens }) {
  const tags = specialTokens.filter((token) => TAG.test(token));
  if (tags.length < 2) return;
  const named = tags.map((tag) => [languageName(TAG.exec(tag)[1]), tag]);
  named.sort(([a], [b]) => a.localeCompare(b, "en"));
  element("language").replaceChildren(...named.map(([name, tag]) => new Option(name, tag)));
  const own = navigator.languages.flatMap((name) => [name.replace("-", "_"), name.split("-")[0]]);
  const preferred = own.map((name) => `[${name}]`).find((tag) => tags.includes(tag));
  if (preferred) element("language").value = preferred;
  element("of-language").hidden = false;
}

whenSubmitted(write);
element("stop").addEventListener("click", () => (stopped = true));
begin("stream", "generate").then((model) => {
  if (!model) return;
  element("of-temperature").hidden = !model.abilities.includes("stream");
  offerLanguages(model);
});
