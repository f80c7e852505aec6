/**
 * A text-to-text model that keras_tfm exported, run in the browser.
 *
 *     import { loadModel } from "./model.js";
 *
 *     const model = await loadModel("models/int8.tflite");
 *     const { text, milliseconds } = await model.generate("[es]3 de marzo de 2026");
 *
 * One .tflite file is all there is to load: it holds the weights, the search, the tokenizers of both
 * sides and a checksum over all of that. This module needs `@litertjs/core` and
 * `@huggingface/tokenizers` in the page's import map, and nothing else of this folder.
 */

import { loadAndCompile, loadLiteRt, Tensor } from "@litertjs/core";
import { Tokenizer } from "@huggingface/tokenizers";

const METADATA_NAME = "keras_tfm"; // keras_tfm/runtime/manifest.py
const LITERT_DTYPES = ["float32", "int32", "uint8"]; // what LiteRT.js passes in and out
const TOKENIZER_MODELS = ["WordLevel", "WordPiece", "BPE", "Unigram"];
const SPLIT_BEHAVIORS = ["isolated", "removed"]; // of others the library makes "isolated"

/** The file, or the browser, is not fit; `message` says why. */
export class ModelError extends Error {
  name = "ModelError";
}

/** The model cannot read this text; `message` says why. */
export class TextError extends Error {
  name = "TextError";
}

/**
 * Fetches a file, compares its checksum and compiles it.
 *
 * @param {string | URL} url - the .tflite file.
 * @param {object} [options]
 * @param {number} [options.threads] - more than 1 needs a page that is cross-origin isolated, and
 *   is the same for all the models of a page.
 * @param {(loaded: number, total: number) => void} [options.onProgress] - bytes; total is 0 where
 *   the server does not tell it.
 * @returns {Promise<Model>}
 * @throws {ModelError}
 */
export async function loadModel(url, { threads = 1, onProgress = () => {} } = {}) {
  const runtime = startRuntime(threads);
  runtime.catch(() => {}); // it is awaited below, unless the file fails first
  const bytes = await download(url, onProgress);
  const metadata = readMetadata(bytes);
  const manifest = await readManifest(bytes, metadata);
  const [inputName, signatures] = textSignatures(manifest);
  const source = readTokenizer(inputName, manifest, metadata);
  const target = readTokenizer(signatures[0].target, manifest, metadata);
  const known = Math.max(...source.get_vocab().values()) + 1;
  const size = signatures[0].inputs[inputName].vocabulary_size ?? known;
  if (known > size) {
    throw new ModelError(`The file's tokenizer has ${known} tokens, its model only ${size}.`);
  }
  await runtime;
  try {
    const cpuOptions = { numThreads: threads };
    const compiled = await loadAndCompile(bytes, { accelerator: "wasm", cpuOptions });
    const model = new Model(
      compiled,
      manifest,
      bytes.length,
      inputName,
      signatures,
      source,
      target,
    );
    await model.generateTokens([1]); // the first run takes many times as long as others
    return model;
  } catch (error) {
    throw new ModelError(`LiteRT.js cannot load the file: ${error.message}`);
  }
}

/** A loaded model; made by `loadModel`. */
export class Model {
  #compiled;
  #inputName;
  #signatures;
  #source;
  #target;

  constructor(compiled, manifest, size, inputName, signatures, source, target) {
    this.#compiled = compiled;
    this.#inputName = inputName;
    this.#signatures = signatures;
    this.#source = source;
    this.#target = target;
    /** What the file says of itself. */
    this.manifest = manifest;
    /** Of the file, in bytes. */
    this.size = size;
    /** How many tokens a text may have. */
    this.length = signatures.at(-1).length;
    /** The source's special tokens, such as "[de]", which a text may contain. */
    this.specialTokens = [...source.special_tokens];
  }

  /**
   * @param {string} text
   * @returns {number[]} its tokens.
   * @throws {TextError} nothing to read, characters the model never saw, or too many tokens.
   */
  encode(text) {
    const { ids, tokens } = this.#source.encode(text);
    const special = new Set(this.#source.special_tokens);
    const unknown = new Set(
      tokens.filter(
        (token) =>
          this.#source.token_to_id(token) === undefined || token === this.#source.model.unk_token,
      ),
    );
    if (unknown.size) {
      const nameless = unknown.delete(this.#source.model.unk_token) && !unknown.size;
      const list = [...unknown].map((token) => `“${token}”`).join(", ");
      throw new TextError(
        `The model has never seen ${nameless ? "some of these characters" : list}.`,
      );
    }
    if (tokens.every((token) => special.has(token))) {
      throw new TextError("There is no text to read.");
    }
    if (ids.length > this.length) {
      throw new TextError(
        `The text is too long: it has ${ids.length} tokens, and the model reads ${this.length}.`,
      );
    }
    return ids;
  }

  /**
   * @param {number[]} ids - at most `length` tokens.
   * @returns {Promise<Int32Array>} the generated tokens: the start token first, 0 after the end; of
   *   a beam search the best.
   */
  async generateTokens(ids) {
    const signature = this.#signatures.find(({ length }) => ids.length <= length);
    const rows = new Int32Array(signature.batch * signature.length);
    for (let row = 0; row < signature.batch; row++) rows.set(ids, row * signature.length);
    const input = new Tensor(rows, [signature.batch, signature.length]);
    let outputs = {};
    try {
      const runner = this.#compiled.signatures[signature.name];
      outputs = await runner.run({ [this.#inputName]: input });
      return (await outputs.tokens.data()).slice(0, signature.outputs.tokens.shape.at(-1));
    } finally {
      for (const tensor of [input, ...Object.values(outputs)]) tensor.delete();
    }
  }

  /**
   * @param {ArrayLike<number>} tokens - as `generateTokens` makes them.
   * @returns {string}
   */
  decode(tokens) {
    const { end_id: end, pad_id: padding } = this.#signatures[0];
    const ends = end === null ? [] : [end].flat();
    const ids = Array.from(tokens).slice(1);
    const stop = ids.findIndex((id) => ends.includes(id));
    if (stop >= 0) ids.length = stop;
    while (ids.length && ids.at(-1) === padding) ids.pop();
    return ids.length ? this.#target.decode(ids, { skip_special_tokens: true }) : "";
  }

  /**
   * @param {string} text
   * @returns {Promise<{text: string, tokens: Int32Array, milliseconds: number}>} the answer, and
   *   how long it took from text to text.
   * @throws {TextError}
   */
  async generate(text) {
    const start = performance.now();
    const tokens = await this.generateTokens(this.encode(text));
    return { text: this.decode(tokens), tokens, milliseconds: performance.now() - start };
  }

  /** Frees the memory, which the browser cannot do by itself. */
  delete() {
    this.#compiled.delete();
  }
}

// --- The runtime -------------------------------------------------------------------------------

let started; // LiteRT.js is one WebAssembly module a page

function startRuntime(threads) {
  if (!Number.isInteger(threads) || threads < 1) {
    return Promise.reject(
      new ModelError(`The number of threads must be 1 or more, not ${threads}.`),
    );
  }
  if (started && started.threads !== threads) {
    return Promise.reject(
      new ModelError(`This page's models run with ${started.threads} threads, not ${threads}.`),
    );
  }
  if (threads > 1 && !globalThis.crossOriginIsolated) {
    return Promise.reject(
      new ModelError(
        "Threads need a page that is cross-origin isolated: its server must send the headers " +
          "Cross-Origin-Opener-Policy and Cross-Origin-Embedder-Policy.",
      ),
    );
  }
  if (!started) {
    const folder = new URL("../wasm/", import.meta.resolve("@litertjs/core")).href;
    const ready = loadLiteRt(folder, { threads: threads > 1 }).catch((error) => {
      started = undefined;
      const reason = error instanceof Event ? `no ${error.target.src}` : error.message;
      throw new ModelError(`LiteRT.js did not start: ${reason}`);
    });
    started = { threads, ready };
  }
  return started.ready;
}

async function download(url, onProgress) {
  const name = new URL(url, document.baseURI).pathname.split("/").pop();
  const response = await fetch(url).catch(() => {
    throw new ModelError(`${name} cannot be fetched: the server does not answer.`);
  });
  if (response.status === 404) throw new ModelError(`The server has no file ${name}.`);
  if (!response.ok) throw new ModelError(`The server answers ${response.status} for ${name}.`);
  const total = Number(response.headers.get("Content-Length"));
  const chunks = [];
  let loaded = 0;
  onProgress(0, total);
  try {
    for (const reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      chunks.push(value);
      onProgress((loaded += value.length), total);
    }
  } catch {
    throw new ModelError(`${name} broke off after ${loaded} bytes.`);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

// --- The file ----------------------------------------------------------------------------------

/** The metadata of a .tflite file: name -> the bytes, which are a part of `bytes`. */
function readMetadata(bytes) {
  if (new TextDecoder().decode(bytes.subarray(4, 8)) !== "TFL3") {
    throw new ModelError("This is not a .tflite file.");
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const u32 = (at) => view.getUint32(at, true);
  // A flatbuffer table begins with the distance back to its list of where each field is.
  const field = (table, index) => {
    const fields = table - view.getInt32(table, true);
    const slot = 4 + 2 * index;
    const offset = slot < view.getUint16(fields, true) ? view.getUint16(fields + slot, true) : 0;
    return offset && table + offset;
  };
  const reference = (at) => at && at + u32(at);
  const vector = (table, index) => reference(field(table, index));
  const tables = (table, index) => {
    const at = vector(table, index);
    return Array.from({ length: at ? u32(at) : 0 }, (_, i) => reference(at + 4 + 4 * i));
  };
  const part = (start, length) => {
    if (start + length > bytes.length) throw new RangeError("the file ends too early");
    return bytes.subarray(start, start + length);
  };
  const long = (at) => (at ? Number(view.getBigUint64(at, true)) : 0);
  try {
    const model = u32(0); // Model {.., buffers 4, .., metadata 6}
    const buffers = tables(model, 4); // Buffer {data 0, offset 1, size 2}
    const found = new Map();
    for (const entry of tables(model, 6)) {
      // Metadata {name 0, buffer 1}
      const name = vector(entry, 0);
      const number = field(entry, 1);
      const buffer = buffers[number && u32(number)];
      const data = vector(buffer, 0);
      const outside = long(field(buffer, 1)); // of large files: behind the flatbuffer
      const content = data ? part(data + 4, u32(data)) : part(outside, long(field(buffer, 2)));
      found.set(new TextDecoder().decode(part(name + 4, u32(name))), content);
    }
    return found;
  } catch (error) {
    throw new ModelError(`The file is damaged: its metadata cannot be read (${error.message}).`);
  }
}

/** What the file says of itself, after its checksum was compared. */
async function readManifest(bytes, metadata) {
  const raw = metadata.get(METADATA_NAME);
  if (!raw) {
    throw new ModelError(
      "The file has no keras_tfm manifest: something else wrote it, or it is damaged.",
    );
  }
  const text = new TextDecoder("latin1").decode(raw); // a character a byte; it is ASCII
  let manifest;
  try {
    manifest = JSON.parse(text);
  } catch {
    throw new ModelError("The file is damaged: its manifest is not JSON.");
  }
  const expected = String(manifest?.sha256);
  const position = text.indexOf(expected);
  if (position < 0 || expected.length !== 64) {
    throw new ModelError("The file is damaged: it has no checksum.");
  }
  if (!globalThis.crypto?.subtle) {
    throw new ModelError(
      "The checksum cannot be compared: a browser does that for pages that come over https or " +
        "from this machine, 127.0.0.1.",
    );
  }
  // The checksum was taken with zeros where it stands.
  const digits = raw.subarray(position, position + 64);
  const kept = digits.slice();
  digits.fill("0".charCodeAt(0));
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  digits.set(kept);
  const received = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (received !== expected) {
    throw new ModelError("The file is damaged: its checksum does not match its content.");
  }
  return manifest;
}

/** The name of the one input, and the signatures that generate from it, the shortest first. */
function textSignatures(manifest) {
  for (const [name, { inputs, outputs }] of Object.entries(manifest.signatures)) {
    for (const [key, { dtype }] of [...Object.entries(inputs), ...Object.entries(outputs)]) {
      if (!LITERT_DTYPES.includes(dtype)) {
        throw new ModelError(
          `LiteRT.js cannot load the file: ${key} of its signature ${name} is ${dtype}, and it ` +
            `takes ${LITERT_DTYPES.join(", ")}.`,
        );
      }
    }
  }
  const signatures = Object.entries(manifest.signatures)
    .filter(([, signature]) => signature.role === "generate")
    .map(([name, signature]) => {
      const [batch, length] = Object.values(signature.inputs)[0].shape;
      return { ...signature, name, batch, length };
    })
    .sort((a, b) => a.length - b.length);
  if (!signatures.length) throw new ModelError("The file has no signature that generates.");
  const [inputName, ...others] = Object.keys(signatures[0].inputs);
  const { shape, dtype, padded = true } = signatures[0].inputs[inputName];
  if (others.length || shape.length !== 2 || dtype !== "int32" || !padded) {
    const names = [inputName, ...others].join(", ");
    throw new ModelError(`This page runs models of one padded row of tokens, not of ${names}.`);
  }
  return [inputName, signatures];
}

function readTokenizer(key, manifest, metadata) {
  const name = manifest.tokenizers?.[key];
  const content = metadata.get(name);
  if (!content) throw new ModelError(`The file has no tokenizer for its ${key}.`);
  if (!name.endsWith(".json")) {
    throw new ModelError(`The tokenizer ${name} is not a tokenizer.json, which this page reads.`);
  }
  try {
    const json = JSON.parse(new TextDecoder().decode(content));
    if (!TOKENIZER_MODELS.includes(json.model.type)) {
      throw new Error(`its model is ${json.model.type}, not one of ${TOKENIZER_MODELS.join(", ")}`);
    }
    const behavior = [json.pre_tokenizer, ...(json.pre_tokenizer?.pretokenizers ?? [])]
      .filter((step) => step?.type === "Split" && !step.invert)
      .map((step) => step.behavior)
      .find((value) => !SPLIT_BEHAVIORS.includes(value.toLowerCase()));
    if (behavior) throw new Error(`it splits with ${behavior}`);
    // Of a WordLevel model the library makes its "legacy" one, which is the same thing.
    const config = { unk_token: json.model.unk_token, clean_up_tokenization_spaces: false };
    return new Tokenizer(json, config);
  } catch (error) {
    throw new ModelError(`The tokenizer ${name} cannot be read: ${error.message}.`);
  }
}
