/**
 * Checks a tokenizer.json before it is built: other people's files may hold rules that turn a
 * character into gigabytes, and regular expressions that never end. The rules are those of
 * keras_tfm/runtime/tokenizers/tokenizer_limits.py and backtracking.py, which explain them.
 *
 *     checkTokenizer(JSON.parse(text), text.length); // throws an Error that says why
 */

const MOST = 256; // characters that a character of a text may become
const ADDED = 2 ** 14; // characters before or after each text
const STEPS = 1000;
const IDS = 2 ** 22; // the largest id in a small file
const AFFIX = 64;
const WORD = 1000;
// The most characters that one becomes. The package's Precompiled is NFKC.
const FACTORS = { ByteLevel: 4, BertNormalizer: 6, Lowercase: 2 };
const FORMS = { NFC: 3, NFD: 4, NFKC: 18, NFKD: 18, Precompiled: 18 };
const TRIE = 2 ** 22; // characters of pieces: each takes an object
const CHILDREN = {
  normalizer: "normalizers",
  pre_tokenizer: "pretokenizers",
  post_processor: "processors",
  decoder: "decoders",
};

/**
 * @param {object} settings - of a tokenizer.json.
 * @param {number} size - of the file, in bytes.
 * @throws {Error} it cannot be built and run in bounded memory and time.
 */
export function checkTokenizer(settings, size) {
  checkModel(settings.model, settings.added_tokens ?? [], size);
  const parts = Object.fromEntries(
    Object.entries(CHILDREN).map(([name, children]) => [name, [...steps(settings[name], children)]]),
  );
  // As a post-processor, ByteLevel changes no text.
  const template = parts.post_processor.filter(({ type }) => type !== "ByteLevel");
  checkGrowth([...parts.normalizer, ...parts.pre_tokenizer, ...template], "text");
  checkGrowth(parts.decoder, "token");
}

/** The steps of a part in their order, without the sequences that hold them. */
function* steps(part, children) {
  if (part?.type !== "Sequence") {
    if (part) yield part;
    return;
  }
  for (const one of part[children]) yield* steps(one, children);
}

function checkModel(model, added, size) {
  const { vocab } = model;
  let characters = added.reduce((sum, { content }) => sum + content.length, 0);
  const checkId = (id) => {
    if (!(Number.isInteger(id) && id >= 0 && id <= Math.max(size, IDS))) {
      throw new Error(`it has the id ${id} in ${size} bytes`);
    }
  };
  if (Array.isArray(vocab)) for (const [piece] of vocab) characters += piece.length;
  else for (const token in vocab) checkId(vocab[token]);
  for (const { id } of added) checkId(id);
  if (characters > TRIE) throw new Error(`its pieces have ${characters} characters, more than ${TRIE}`);
  const affixes = ["continuing_subword_prefix", "continuing_subword_suffix", "end_of_word_suffix"];
  for (const key of affixes) {
    if (model[key]?.length > AFFIX) throw new Error(`its ${key} has more than ${AFFIX} characters`);
  }
  const longest = model.max_input_chars_per_word;
  if (longest > WORD) throw new Error(`its max_input_chars_per_word is ${longest}, more than ${WORD}`);
}

/** The number of characters that each character becomes in the steps from some step on. */
class Weights {
  #default = 1;
  #of = new Map();

  get(char) {
    return this.#of.get(char) ?? this.#default;
  }

  text(text) {
    let sum = 0;
    for (const char of text) sum += this.get(char);
    return sum;
  }

  get largest() {
    let most = this.#default;
    for (const x of this.#of.values()) most = Math.max(most, x);
    return most;
  }

  apply(change) {
    this.#default = change(this.#default);
    for (const [char, x] of this.#of) this.#of.set(char, change(x));
  }

  /** Puts a step before the others that replaces what a pattern matches by a text. */
  replace({ String: literal, Regex: regex }, content) {
    const made = this.text(content);
    if (literal) {
      const [first] = literal; // it pays for all of a match
      this.#of.set(first, Math.max(this.get(first), made));
    } else if (literal === "" || leastLength(parse(regex)) === 0) {
      this.apply((x) => x + made); // inserted everywhere
    } else {
      this.apply((x) => Math.max(x, made));
    }
  }
}

function checkGrowth(found, of) {
  if (found.length > STEPS) throw new Error(`it takes ${found.length} steps for a ${of}`);
  const weights = new Weights();
  let added = 0;
  let hasForm = false;
  for (const step of [...found].reverse()) {
    const { type } = step;
    if (step.pattern?.Regex !== undefined) checkRegex(step.pattern.Regex);
    if (type === "Replace") weights.replace(step.pattern, step.content ?? "");
    else if (type === "Prepend") added += weights.text(step.prepend);
    else if (type === "Metaspace") {
      const mark = step.str_rep || (step.replacement ?? "\u2581");
      if (of === "token") weights.replace({ String: mark }, " ");
      else {
        weights.replace({ String: " " }, mark);
        const before = weights.text(mark); // before each word
        weights.apply((x) => x + before);
      }
    } else if (type === "BPEDecoder") weights.replace({ String: step.suffix ?? "" }, " ");
    else if (type === "TemplateProcessing") {
      const templates = [step.single, step.pair ?? []];
      const times = Math.max(1, ...templates.map(copies));
      added += Math.max(...templates.map(({ length }) => length));
      weights.apply((x) => x * times);
    } else if (type === "FixedLength" && !(step.length >= 1)) {
      throw new Error(`it splits a text into parts of ${step.length} characters`);
    } else if (!keepsCharacters(step)) {
      // Whatever it makes of a character. One of Unicode's forms is not counted: it makes at most
      // 18 characters of one, but alternating with other steps they would grow.
      const isForm = Object.hasOwn(FORMS, type);
      const factor = isForm ? (hasForm ? FORMS[type] : 1) : (FACTORS[type] ?? 1);
      hasForm ||= isForm;
      const least = factor * weights.largest;
      weights.apply((x) => Math.max(x, least));
    }
    if (type === "BertNormalizer") {
      const spaces = 2 * weights.get(" "); // around Chinese characters
      weights.apply((x) => x + spaces);
    } else if (type === "WordPiece") added += weights.get(" "); // a space before each token
    if (weights.largest > MOST) {
      const most = weights.largest.toPrecision(3);
      throw new Error(`it makes up to ${most} characters of one of a ${of}, more than ${MOST}`);
    }
    if (added > ADDED) throw new Error(`it adds ${added} to each ${of}, more than ${ADDED}`);
  }
}

/** Whether a step is a BertNormalizer that neither decomposes characters nor lowers them. */
function keepsCharacters({ type, strip_accents: strips, lowercase }) {
  return type === "BertNormalizer" && strips === false && lowercase === false;
}

/** How often a template has the same text. */
function copies(template) {
  const times = {};
  for (const { Sequence: text } of template) if (text) times[text.id] = (times[text.id] ?? 0) + 1;
  return Math.max(0, ...Object.values(times));
}

// --- Regular expressions -------------------------------------------------------------------------

const MANY = 16; // repetitions that count as unbounded
const LONGEST = 20_000;
const DEEPEST = 40;
const UNBALANCED = "its brackets are not closed, or not opened";
const PLACES = ["\\b", "\\B", "\\A", "\\z", "\\Z", "\\G"];

/**
 * @param {string} pattern
 * @throws {Error} it could take more than some n^2 steps for n characters.
 */
export function checkRegex(pattern) {
  const refuse = refusal(pattern);
  for (const items of parse(pattern)) {
    if (cost(items, false, refuse) > 1) refuse("several of its repetitions give back what they took");
  }
}

function refusal(pattern) {
  const shown = pattern.length > 60 ? `${pattern.slice(0, 60)}...` : pattern;
  return (reason) => {
    throw new Error(`the regular expression ${shown} may take forever: ${reason}`);
  };
}

/** The alternatives of a pattern, each a list of `{ text, inside, looks, least, most }`. */
function parse(pattern) {
  if (typeof pattern !== "string") throw new Error("a regular expression is no text");
  const refuse = refusal(pattern);
  if (pattern.length > LONGEST) refuse(`it has more than ${LONGEST} characters`);
  let at = 0;

  const take = (sticky) => {
    sticky.lastIndex = at;
    const found = sticky.exec(pattern);
    if (found) at += found[0].length;
    return found;
  };

  /** Reads the beginning of a group: whether it only looks around. */
  const groupBegins = () => {
    if (take(/\(\?[a-wyz-]*(?=\))/y)) return false; // flags
    const found = take(/\((?:\?(<?[=!]|[:>]|<[A-Za-z_]\w*>|[a-wyz-]*:))?/y);
    if (!found[1] && pattern[at] === "?") refuse(`${pattern.slice(at - 1, at + 4)} is unknown here`);
    return ["=", "!", "<=", "<!"].includes(found[1]);
  };

  const skipClass = () => {
    for (let depth = 0, first = true; at < pattern.length; ) {
      const char = pattern[at++];
      if (char === "[" && (depth === 0 || pattern.indexOf("]", at) >= 0)) {
        [depth, first] = [depth + 1, true];
        if (pattern[at] === "^") at++;
        continue;
      }
      if (char === "\\") at++;
      else if (char === "]" && !first) depth--;
      first = false;
      if (depth === 0) return;
    }
    refuse(UNBALANCED);
  };

  const quantifier = () => {
    const found = take(/(?:[*+?]|\{(?!,?\})(\d*)(,?)(\d*)\})[?+]?/y);
    if (!found) return { least: 1, most: 1 };
    if (/^(?:[*+?]|\{\d*,?\d*\})/.test(pattern.slice(at, at + 30))) refuse("it repeats a repetition");
    const [sign] = found[0];
    if (sign !== "{") return { least: Number(sign === "+"), most: sign === "?" ? 1 : Infinity };
    const least = Number(found[1]);
    return { least, most: found[3] ? Number(found[3]) : found[2] ? Infinity : least };
  };

  const item = (depth) => {
    const begin = at;
    const char = pattern[at];
    let looks = char === "^" || char === "$";
    let inside = [];
    if (char === "(") {
      looks = groupBegins();
      inside = alternatives(depth + 1);
      if (at++ >= pattern.length) refuse(UNBALANCED);
    } else if (char === "[") skipClass();
    else if (char === "\\") {
      const [escape] = take(/\\(?:[pPxu]\{[^}]*\}|x\w{2}|u\w{4}|[^])/y) ?? [];
      if (!escape) refuse(UNBALANCED);
      if ("123456789kg".includes(escape[1])) refuse(`it refers to what it has matched, ${escape}`);
    } else at++;
    const text = pattern.slice(begin, at);
    return { text, inside, looks: looks || PLACES.includes(text), ...quantifier() };
  };

  const alternatives = (depth) => {
    if (depth > DEEPEST) refuse(`its groups are nested more than ${DEEPEST} deep`);
    const found = [[]];
    while (at < pattern.length && pattern[at] !== ")") {
      if (pattern[at] === "|") {
        at++;
        found.push([]);
      } else {
        found.at(-1).push(item(depth));
      }
    }
    return found;
  };

  const found = alternatives(0);
  if (at < pattern.length) refuse(UNBALANCED);
  return found;
}

/** Whether an item can match a text in several ways, or texts of several lengths. */
function varies({ inside, least, most }) {
  if (least !== most) return true;
  const first = inside.map(([item]) => item?.text ?? "");
  const literal = first.every((text) => text.length === 1 && !".[(^$".includes(text));
  // "a" and "A" may match the same text: there are flags.
  const folded = new Set(first.map((text) => text.toUpperCase().toLowerCase()[0]));
  if (inside.length > 1 && !(literal && folded.size === first.length)) return true;
  return inside.flat().some(varies);
}

/** The number of repetitions in a sequence that may give back what they took. */
function cost(items, mayFail, refuse) {
  let total = 0;
  for (const item of [...items].reverse()) {
    const { inside, looks, least, most, text } = item;
    if (most > 1 && varies({ inside, least: 1, most: 1 })) {
      refuse(`it repeats ${text.slice(0, 40)}, which can match in several ways`);
    }
    const after = mayFail || looks;
    let largest = 0;
    for (const branch of inside) largest = Math.max(largest, cost(branch, after, refuse));
    total += largest + Number(least !== most && most >= MANY && mayFail);
    mayFail = after || least > 0;
  }
  return total;
}

function leastLength(alternatives) {
  const ofItem = ({ inside, looks, least }) =>
    looks ? 0 : least * (inside.length ? leastLength(inside) : 1);
  const lengths = alternatives.map((items) => items.reduce((sum, item) => sum + ofItem(item), 0));
  return lengths.reduce((a, b) => Math.min(a, b));
}
