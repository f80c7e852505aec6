const EXAMPLES = [
  ["3 de marzo de 2026", "es"],
  ["Donnerstag, 24. Dez. 1998", "de"],
  ["03/04/26", "en_GB"],
  ["03/04/26", "en_US"],
  ["2026年3月3日", "ja"],
  ["٣ مارس ٢٠٢٦", "ar_EG"],
  ["вторник, 3 марта 2026 г.", "ru"],
  ["3 ARALIK 2026", "tr"],
];
const FILES = { int8: "models/int8.tflite", float32: "models/float32.tflite" };
const threads = Number(new URLSearchParams(location.search).get("threads") ?? 1);

const element = (id) => document.getElementById(id);
const [form, date, language] = ["question", "date", "language"].map(element);
const { loadModel, ModelError, TextError } = await import("./model.js").catch((error) => {
  say(`This page's packages did not load; "npm ci" installs them. (${error.message})`);
  throw error;
});
const models = new Map(); // weights -> promise of the model
let turn = 0; // only the latest question is answered
let offered = null; // the languages in the list
let pendingLanguage = null; // of an example pressed before the languages are known

// --- Questions ---------------------------------------------------------------------------------

async function ask() {
  const mine = ++turn;
  say("");
  element("answer").replaceChildren();
  const weights = new FormData(form).get("weights");
  try {
    const model = await loaded(weights);
    if (mine !== turn) return;
    offerLanguages(model);
    stateFacts(model, weights);
    if (date.value.trim()) await answer(model, weights, mine);
  } catch (error) {
    if (mine === turn) fail(error);
  } finally {
    if (mine === turn) element("loading").hidden = true;
  }
}

async function answer(model, weights, mine) {
  const { text, milliseconds } = await model.generate(`[${language.value}]${date.value}`);
  if (mine !== turn) return;
  const duration = `${milliseconds.toFixed(1)} ms, ${weights}`;
  const day = realDay(text);
  if (!day) {
    say(`The model answers “${text}”, which is not a date (${duration}).`);
    return;
  }
  const iso = make("time", text, { className: "iso", dateTime: text });
  const words = new Intl.DateTimeFormat("en", { dateStyle: "full", timeZone: "UTC" }).format(day);
  element("answer").replaceChildren(iso, make("p", `${words} · ${duration}`));
  element("answer").scrollIntoView({ block: "nearest" });
}

function realDay(iso) {
  const day = /^\d{4}-\d\d-\d\d$/.test(iso) ? new Date(`${iso}T00:00:00Z`) : new Date(NaN);
  return !Number.isNaN(day.valueOf()) && day.toISOString().startsWith(iso) ? day : null;
}

function fail(error) {
  say(error.message);
  if (error instanceof TextError) date.setAttribute("aria-invalid", "true");
  else if (!(error instanceof ModelError)) console.error(error);
}

function say(problem) {
  date.removeAttribute("aria-invalid");
  element("problem").textContent = problem;
}

// --- Models ------------------------------------------------------------------------------------

function loaded(weights) {
  if (!models.has(weights)) {
    const words = element("loading-words");
    const bar = element("progress");
    element("loading").hidden = false;
    words.textContent = `Loading LiteRT.js and the ${weights} file`;
    bar.removeAttribute("value");
    const onProgress = (loaded, total) => {
      if (total) Object.assign(bar, { max: total, value: loaded });
      if (loaded === total) {
        words.textContent = `Preparing the ${weights} file, ${megabytes(total)}`;
        bar.removeAttribute("value");
      }
    };
    const model = loadModel(FILES[weights], { threads, onProgress });
    model.catch(() => models.delete(weights)); // the next question tries again
    models.set(weights, model);
  }
  return models.get(weights);
}

/** The languages that the file's tokenizer has a token for, "[de]" or "[en_GB]". */
function offerLanguages(model) {
  const tags = model.specialTokens.flatMap(
    (token) => /^\[([a-z]+(?:_[A-Z]+)?)\]$/.exec(token)?.[1] ?? [],
  );
  if (tags.join() === offered) return; // the other file has the same
  offered = tags.join();
  const named = tags.filter((tag) => tag !== "any").map((tag) => [languageName(tag), tag]);
  named.sort(([a], [b]) => a.localeCompare(b));
  if (tags.includes("any")) named.unshift(["Not told: month by name, or year-month-day", "any"]);
  const chosen = language.disabled ? (pendingLanguage ?? preferred(tags)) : language.value;
  language.replaceChildren(...named.map(([name, tag]) => new Option(name, tag)));
  language.value = tags.includes(chosen) ? chosen : tags[0];
  language.disabled = false;
}

function languageName(tag) {
  return new Intl.DisplayNames("en", { type: "language" }).of(tag.replace("_", "-"));
}

/** The reader's own language, where the model knows it. */
function preferred(tags) {
  const own = navigator.languages.map((name) => name.replace("-", "_"));
  const found = own
    .flatMap((name) => [name, name.split("_")[0]])
    .find((name) => tags.includes(name));
  return found ?? "any";
}

function stateFacts(model, weights) {
  const { keras_tfm: version, sha256 } = model.manifest;
  const facts = {
    File: `${weights}.tflite, ${megabytes(model.size)}, written by keras_tfm ${version}`,
    Checksum: `${sha256.slice(0, 12)}…, compared`,
    Runtime: `LiteRT.js, ${threads} thread${threads === 1 ? "" : "s"}`,
    "Cross-origin isolated": crossOriginIsolated
      ? "yes, threads are possible"
      : "no, so no threads",
  };
  const rows = Object.entries(facts).flatMap(([term, fact]) => [
    make("dt", term),
    make("dd", fact),
  ]);
  element("facts").replaceChildren(...rows);
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const make = (name, text, rest = {}) =>
  Object.assign(document.createElement(name), { textContent: text, ...rest });

// --- The page ----------------------------------------------------------------------------------

for (const [text, tag] of EXAMPLES) {
  const button = make("button", "", { type: "button" });
  button.append(
    make("span", text, { dir: "auto", lang: tag.replace("_", "-") }),
    make("small", languageName(tag)),
  );
  button.addEventListener("click", () => {
    date.value = text;
    if (language.disabled) pendingLanguage = tag;
    else language.value = tag;
    ask();
  });
  const item = document.createElement("li");
  item.append(button);
  element("examples").append(item);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!date.value.trim()) {
    turn++;
    element("answer").replaceChildren();
    fail(new TextError("There is no date to read: type one."));
    date.focus();
    return;
  }
  ask();
});
form.addEventListener("change", (event) => {
  if (event.target !== date) ask();
});
ask(); // loads the first model
