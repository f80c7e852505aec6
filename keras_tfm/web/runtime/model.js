/**
 * A model of texts, pictures or speech that keras_tfm exported, run in the browser.
 *
 *     import { loadModel } from "./model.js";
 *
 *     const translator = await loadModel("models/translator.tflite");
 *     const { text, milliseconds } = await translator.generate("[es]3 de marzo de 2026");
 *
 *     const classifier = await loadModel("models/classifier.tflite");
 *     const { output } = await classifier.predict("Neuseeland"); // a score a class
 *
 *     const writer = await loadModel("models/language_model.tflite");
 *     for await (const piece of writer.stream("[de][city]Neu")) console.log(piece);
 *
 *     const detector = await loadModel("models/detector.tflite");
 *     const found = await detector.detect(file); // objects in a picture, with their boxes
 *
 *     const captioner = await loadModel("models/captions.tflite");
 *     const { text: caption } = await captioner.caption(file);
 *
 *     const listener = await loadModel("models/speech.tflite");
 *     const { text: said } = await listener.transcribe(recording); // a WAV file, or another
 *
 *     const monitor = await loadModel("models/monitor.tflite"); // reads its source in pieces
 *     const stream = monitor.openStream();
 *     const { output } = await stream.append([20.5, 20.6]); // a row for each that is final
 *
 *     const recogniser = await loadModel("models/live.tflite");
 *     const live = recogniser.listen();
 *     console.log(await live.append(samples)); // the text so far
 *
 *     const clip = await loadModel("models/clip.tflite"); // several models in one file
 *     const vector = await clip.embedText("a red bicycle"); // by clip.models.text
 *
 *     const artist = await loadModel("models/drawing.tflite"); // DALL-E and the decoder of its VAE
 *     const [{ image }] = await artist.draw("a red bicycle");
 *     canvas.getContext("2d").putImageData(image, 0, 0);
 *
 * One .tflite file is all there is to load: it holds the weights, the search, the tokenizers, the
 * rules for pictures and a checksum over all of that. This module needs `@litertjs/core` and
 * `@huggingface/tokenizers` in the page's import map, or from a bundler, tokenizer_check.js beside it,
 * for pictures image_processor.js and resampling.js, and for audio audio.js.
 */

import { getGlobalLiteRt, loadAndCompile, loadLiteRt, Tensor } from "@litertjs/core";
import { Tokenizer } from "@huggingface/tokenizers";

import { checkTokenizer } from "./tokenizer_check.js";

const METADATA_NAME = "keras_tfm"; // keras_tfm/runtime/manifest/storage.py
const FORMAT = 4; // keras_tfm/runtime/manifest/manifest.py
// The dtypes that LiteRT.js supports for inputs and outputs.
const ARRAYS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };
const TOKENIZER_MODELS = ["WordLevel", "WordPiece", "BPE", "Unigram"];
const LARGEST_TOKENIZER = 64e6; // bytes; Gemma's has 33 MB
const SPLIT_BEHAVIORS = ["isolated", "removed"]; // the library turns others into "isolated"
const SAVED_VERSION = 1; // of what `Session.save` returns
// Recurrent states cannot be rewound: those after the last steps are kept, and those at the ends of the
// last reads, which a chat rewinds to.
const [RECENT_STATES, END_STATES] = [4, 8];
const UNKNOWN_END = 2 ** 31 - 2 ** 20; // keras_tfm/runtime/tasks/source_stream.py
const BLANK = 0; // the class of CTC that is no label, as in Keras
const INCOMPLETE = "\ufffd"; // a decoder writes it for bytes that are not, or not yet, a character

/**
 * Chooses the token after `tokens`, the prompt included; by default the most probable. `sampler` makes
 * one.
 *
 * @callback Choose
 * @param {Float32Array} logits
 * @param {number[]} tokens
 * @returns {number | Promise<number>}
 */

/** The file or the browser is unsupported; `message` says why. */
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
 * @template {Model | ModelGroup} [T=Model]
 * @param {string | URL | Uint8Array | ArrayBuffer | Blob} source - the address of the .tflite file, or
 *   its bytes.
 * @param {object} [options]
 * @param {number} [options.threads] - more than 1 needs a page that is cross-origin isolated, and
 *   is the same for all the models of a page.
 * @param {string | URL} [options.wasm] - the address of the folder with the WebAssembly files of
 *   LiteRT.js; by default the folder `wasm` of the package `@litertjs/core` in the import map.
 * @param {(loaded: number, total: number) => void} [options.onProgress] - bytes; total is 0 where
 *   the server does not tell it.
 * @returns {Promise<T>} a `ModelGroup` if the file holds several models.
 * @throws {ModelError}
 */
export async function loadModel(
  source,
  { threads = 1, wasm, onProgress = () => {}, ...others } = {},
) {
  const [unknown] = Object.keys(others);
  if (unknown) throw new ModelError(`loadModel has no option ${unknown}.`);
  const runtime = startRuntime(threads, wasm);
  runtime.catch(() => {}); // it is awaited below, unless the file fails first
  const bytes = await bytesOf(source, onProgress);
  const metadata = readMetadata(bytes);
  const manifest = await readManifest(bytes, metadata);
  const parts = modelsIn(manifest).map(([name, own]) => [name, own, readAbilities(own, metadata)]);
  const readsPictures = ({ predictImages, caption }) => predictImages ?? caption;
  if (parts.some(([, , abilities]) => readsPictures(abilities))) await importImages();
  const hears = ({ transcribe, predictAudio, openStream }) =>
    transcribe ?? predictAudio ?? openStream?.rate;
  if (parts.some(([, , abilities]) => hears(abilities))) await importAudio();
  await runtime;
  try {
    const cpuOptions = { numThreads: threads };
    const file = await loadAndCompile(bytes, { accelerator: "wasm", cpuOptions });
    compareSignatures(manifest, file.signatures);
    const compiled = withModelErrors(file, Object.keys(manifest.signatures));
    const models = parts.map(([name, own, abilities]) => [
      name,
      new Model(compiled, own, bytes.length, abilities),
    ]);
    for (const [, model] of models) await runOnce(model);
    if (!manifest.models) return models[0][1];
    return new ModelGroup(compiled, manifest, bytes.length, Object.fromEntries(models));
  } catch (error) {
    if (error instanceof ModelError) throw error;
    throw new ModelError(`LiteRT.js cannot load the file: ${error.message}`);
  }
}

/** A compiled file, whose runs throw a ModelError where LiteRT.js throws something else. */
function withModelErrors(file, names) {
  const runs = names.map((name) => {
    const run = async (inputs) => {
      try {
        return await file.signatures[name].run(inputs);
      } catch (error) {
        throw new ModelError(`LiteRT.js cannot run ${name} on these inputs: ${error.message}`);
      }
    };
    return [name, { run }];
  });
  return { signatures: Object.fromEntries(runs), delete: () => file.delete() };
}

/** The models of a file by name, each with a manifest of its own; of a single model without one. */
function modelsIn(manifest) {
  if (!manifest.models) return [["", manifest]];
  return Object.entries(manifest.models).map(([name, fields]) => {
    const own = Object.entries(manifest.signatures).filter(([, x]) => x.model === name);
    const { models, ...shared } = manifest;
    return [name, { ...shared, ...fields, signatures: Object.fromEntries(own) }];
  });
}

/** The first run is many times slower than later ones. */
async function runOnce(model) {
  if (model.abilities.includes("generate")) {
    await model.generateTokens([1]);
  } else if (model.abilities.includes("stream")) {
    const ids = [1, 1].slice(0, model.length);
    for await (const token of model.streamTokens(ids)) if (token >= 0) break;
  }
  if (model.abilities.includes("predict")) await model.predictTokens([1]);
  if (model.abilities.includes("predictImages")) await model.predictImages(new ImageData(1, 1));
  if (model.abilities.includes("caption")) await model.caption(new ImageData(1, 1));
  if (["transcribe", "predictAudio"].some((x) => model.abilities.includes(x))) await model.listenOnce();
  if (model.abilities.includes("openStream")) {
    const stream = model.openStream();
    await stream.append(new Float32Array(stream.pieceLength * stream.width));
  }
  if (model.abilities.includes("generateFrom")) await model.generateFrom([]);
  if (model.abilities.includes("draw")) {
    for await (const codes of model.streamCodes([1])) if (codes.length) break;
  }
  if (model.abilities.includes("paint")) await model.paint([new Int32Array(model.length)]);
}

/** A loaded model; made by `loadModel`. */
export class Model {
  #compiled;
  #abilities;
  #main;

  constructor(compiled, manifest, size, abilities) {
    this.#compiled = compiled;
    this.#abilities = abilities;
    /**
     * The supported calls: some of "generate", "stream", "predict", "predictImages", "detect",
     * "caption", "transcribe", "predictAudio", "openStream", "listen", "generateFrom", "draw"
     * (`streamCodes` and `drawCodes`) and "paint".
     */
    this.abilities = Object.keys(abilities).filter((name) => !abilities[name].refusal);
    this.#main = abilities[this.abilities[0]];
    /** What the file says of itself. */
    this.manifest = manifest;
    /** The size of the file, in bytes. */
    this.size = size;
    /**
     * The maximum number of tokens of a text, of codes of `paint`, of samples of speech, or of features
     * of `generateFrom`; 0 if it reads pictures, or a source in pieces.
     */
    this.length = this.#main.length ?? 0;
    /** The source's special tokens, such as "[de]", which a text may contain. */
    this.specialTokens = [...(this.#main.source?.special_tokens ?? [])];
    /** The names of the classes, in order; null if the file has none. */
    this.labels = manifest.labels ?? null;
  }

  /**
   * @param {string} text
   * @returns {number[]} its tokens, as the first of the `abilities` reads them.
   * @throws {TextError} nothing to read, characters the model never saw, or too many tokens.
   */
  encode(text) {
    return encode(text, this.#main);
  }

  /**
   * Generates with the loop in the file; a file without one is stepped here, greedily.
   *
   * @param {number[]} ids - at most `length` tokens.
   * @returns {Promise<Int32Array>} the start token or the prompt, the generated tokens, and after
   *   the end the `pad_id` of the file; of a beam search the best hypothesis.
   */
  async generateTokens(ids) {
    if (!this.abilities.includes("generate")) return this.#stepAll(ids);
    const { input, signatures } = this.#ability("generate");
    const signature = fitting(signatures, ids.length);
    const outputs = await this.#run(signature, input, ids);
    try {
      return outputs.tokens.toTypedArray().slice(0, signature.outputs.tokens.shape.at(-1));
    } finally {
      free(outputs);
    }
  }

  async #stepAll(ids) {
    const ability = this.#ability("stream");
    const tokens = new Int32Array(ability.maxLength).fill(ability.padId);
    const given = promptOf(ids, ability);
    tokens.set(given);
    let count = given.length;
    for await (const token of this.streamTokens(ids)) tokens[count++] = token;
    return tokens;
  }

  /**
   * @param {ArrayLike<number>} tokens - as `generateTokens` makes them.
   * @param {number} [given] - how many of them the model was given: the prompt, or the start token.
   * @returns {string}
   */
  decode(tokens, given = 1) {
    const { target, startId, endIds } = this.#writing();
    const written = until({ endIds }, tokens.slice(given));
    const ids = [...Array.from(tokens).slice(0, given), ...written];
    return textOf(ids[0] === startId ? ids.slice(1) : ids, target);
  }

  /**
   * @param {string} text - the source, or the prompt of a decoder-only model.
   * @returns {Promise<{text: string, tokens: Int32Array, milliseconds: number}>} the answer, after
   *   its prompt if there was one, and how long it took from text to text.
   * @throws {TextError}
   */
  async generate(text) {
    const start = performance.now();
    const ability = this.#writing();
    const ids = encode(text, ability);
    const tokens = await this.generateTokens(ids);
    const answer = this.decode(tokens, promptOf(ids, ability).length);
    return { text: answer, tokens, milliseconds: performance.now() - start };
  }

  /**
   * Yields the generated text, without the prompt, piece by piece; a piece ends at the end of a
   * character. Several streams may run at once.
   *
   * @param {string} text - as in `generate`.
   * @param {object} [options]
   * @param {Choose} [options.choose]
   * @throws {TextError}
   */
  async *stream(text, options) {
    const ability = this.#ability("stream");
    const { target, endIds, startId } = ability;
    const ids = encode(text, ability);
    const before = promptOf(ids, ability);
    if (before[0] === startId) before.shift();
    yield* piecesOf(this.streamTokens(ids, options), before, endIds, target);
  }

  /**
   * Yields the tokens of `stream` as soon as they are chosen, the end among them.
   *
   * @param {number[]} ids - at most `length` tokens.
   * @param {object} [options]
   * @param {Choose} [options.choose]
   */
  async *streamTokens(ids, { choose = mostProbable, ...others } = {}) {
    checkOptions(others, "choose");
    const ability = this.#ability("stream");
    const { input, encoders, decoders, stepped } = ability;
    if (!encoders.length) checkIds(ids, decoders[0].inputs[stepped]);
    const encode = () => this.#run(fitting(encoders, ids.length), input, ids);
    yield* this.#continue(ability, encoders.length ? encode : null, promptOf(ids, ability), choose);
  }

  /** Yields the tokens after a prompt, as soon as they are chosen, the end among them. */
  async *#continue(ability, encode, prompt, choose) {
    const { endIds, maxLength } = ability;
    const tokens = [...prompt];
    const steps = new Steps(this.#compiled, ability);
    try {
      if (encode) steps.begin(await encode());
      await steps.read([prompt], prompt.length - 1);
      let token = prompt.at(-1);
      while (steps.position + 1 < maxLength) {
        const logits = await steps.decode(token);
        token = checkedToken(await choose(logits, [...tokens]), logits);
        tokens.push(token);
        yield token;
        if (endIds.includes(token)) return;
      }
    } finally {
      steps.free();
    }
  }

  /**
   * A text that is continued call by call, whose tokens and KV caches are kept; of a decoder-only
   * model. A model may have any number of sessions.
   *
   * @param {object} [options]
   * @param {object} [options.restore] - what `Session.save` returned, of a session of this file.
   * @returns {Session}
   * @throws {ModelError} `restore` is damaged, or of another file.
   */
  session({ restore } = {}) {
    const ability = this.#ability("stream");
    if (ability.encoders.length) {
      throw new ModelError("A session continues a prompt, but this model reads a source.");
    }
    const { sha256 } = this.manifest;
    const saved = restore === undefined ? undefined : checkedSession(restore, ability, sha256);
    const steps = new Steps(this.#compiled, ability);
    if (saved) steps.restore(saved);
    return new Session(steps, ability, sha256, saved?.tokens, saved?.owed);
  }

  /**
   * A user's message in the chat template of the file; the text as it is where there is none.
   *
   * @param {string} text
   * @param {object} [options]
   * @param {boolean} [options.first] - whether the conversation begins with it.
   * @param {string} [options.system] - a system message, before the first message.
   * @throws {TextError} a message that is not a text.
   */
  chatMessage(text, { first = true, system, ...others } = {}) {
    const template = this.manifest.chat_template;
    const [unknown] = Object.keys(others);
    if (unknown) throw new TextError(`A chat template of texts has no ${unknown}.`);
    if (!isText(text) || !(system === undefined || isText(system))) {
      throw new TextError("A message must be a text.");
    }
    if (system !== undefined && !template?.system) {
      throw new ModelError("The file has no chat template with a system message.");
    }
    if (!template) return text;
    const write = (role, written) =>
      template.trim?.includes(role) ? written.replace(OUTER_SPACE, "") : written;
    let begin = first ? template.first : template.next;
    if (first && system !== undefined) {
      begin = template.system[0] + write("system", system) + template.system[1];
    }
    return begin + write("user", text) + template.answer;
  }

  /**
   * @param {string | [string, string]} text - or a pair of texts, such as a question and a passage;
   *   may have characters that the model never saw, if its tokenizer has a token for those.
   * @returns {Promise<Record<string, Float32Array>>} the model's outputs by name, those of the
   *   shortest length that the text fits.
   * @throws {TextError}
   */
  async predict(text) {
    const { ids, segments } = encodeTyped(text, this.#ability("predict"));
    return this.predictTokens(ids, segments);
  }

  /**
   * @param {number[]} ids - at most `length` tokens.
   * @param {number[]} [segments] - the segment (token type) of each, of a model that reads them; by
   *   default 0.
   * @returns {Promise<Record<string, Float32Array>>} as of `predict`.
   */
  async predictTokens(ids, segments = []) {
    const { input, signatures } = this.#ability("predict");
    const signature = fitting(signatures, ids.length);
    return firstRow(await this.#run(signature, input, ids, segments), signature);
  }

  /**
   * The pixels of a picture, resized, cropped and in the channels that the model was trained on.
   *
   * @param {Blob | ImageBitmap | HTMLImageElement | HTMLVideoElement | HTMLCanvasElement |
   *   OffscreenCanvas | VideoFrame | ImageData} source - a File is a Blob.
   * @returns {Promise<Uint8Array>} (H, W, C).
   * @throws {PictureError} not a picture, or damaged.
   */
  async pixels(source) {
    const { processor } = this.#ability("predictImages");
    return (await images.pixelsOf(processor, source)).pixels;
  }

  /**
   * @param {ImageBitmapSource} source - a picture, as in `pixels`.
   * @returns {Promise<Record<string, Float32Array>>} the model's outputs by name.
   * @throws {PictureError}
   */
  async predictImages(source) {
    return this.predictPixels(await this.pixels(source));
  }

  /**
   * @param {Uint8Array} pixels - (H, W, C), as of `pixels`.
   * @returns {Promise<Record<string, Float32Array>>} as of `predictImages`.
   */
  async predictPixels(pixels) {
    const { input, signature } = this.#ability("predictImages");
    return firstRow(await this.#runMedia(signature, input, pixels), signature);
  }

  /**
   * The text that the model writes for a picture: by cross-attention, by a prefix, or in a prompt with
   * the picture in it.
   *
   * @param {ImageBitmapSource} source - a picture, as in `pixels`.
   * @param {object} [options]
   * @param {string | number[]} [options.prompt] - a text, such as "What is <image>?", in which one
   *   placeholder stands for the picture, or a question, which goes into the file's chat template if
   *   that has a picture, or the first tokens of the text, such as the start token of a language; they
   *   are not a part of the result. By default those of the file, or the picture.
   * @param {Choose} [options.choose] - only of a file with "decode".
   * @returns {Promise<{text: string, tokens: Int32Array, milliseconds: number}>} `tokens` as of
   *   `generateTokens`, and how long it took from the picture to the text.
   * @throws {PictureError | TextError} not a picture; `prompt` is too long or has unknown tokens.
   */
  async caption(source, options = {}) {
    const start = performance.now();
    const ability = this.#ability("caption");
    const { pixels, prompt } = await this.#shown(ability, source, options.prompt);
    return this.#textFor(ability, pixels, prompt, options.choose, start);
  }

  /**
   * The pixels of a picture and the tokens of its prompt: of a file of tiles, with those of the
   * picture's images.
   */
  async #shown(ability, source, prompt) {
    const { processor, placeholder } = ability;
    if (processor.longest_edge === undefined || !placeholder || Array.isArray(prompt)) {
      const about = isText(prompt) ? this.#aboutPicture(prompt, ability) : prompt;
      const tokens = checkedPrompt(about, ability);
      return { prompt: tokens, pixels: (await images.pixelsOf(processor, source)).pixels };
    }
    const { pixels, ...size } = await images.pixelsOf(processor, source);
    let text = this.#aboutPicture(prompt ?? "", ability);
    if (!text.includes(images.IMAGE)) text = images.IMAGE + text;
    const parts = text.split(images.IMAGE);
    if (parts.length > 2) {
      throw new TextError(`A prompt must have ${images.IMAGE} once, not ${parts.length - 1} times.`);
    }
    const place = images.placeOf(processor, size, placeholder.group ?? placeholder.count);
    return { pixels, prompt: checkedPrompt(parts.join(place), ability) };
  }

  /** A prompt without the place of a picture as a message of the user, if the chat template has it. */
  #aboutPicture(prompt, { placeholder, target }) {
    const place = placeholder && target.id_to_token(placeholder.id);
    const isInTemplate = place && this.manifest.chat_template?.first.includes(place);
    return isInTemplate && !prompt.includes(place) ? this.chatMessage(prompt) : prompt;
  }

  /**
   * Yields the text of `caption` piece by piece, of a file with "encode" and "decode".
   *
   * @param {ImageBitmapSource} source - a picture, as in `pixels`.
   * @param {object} [options] - as in `caption`.
   * @param {string | number[]} [options.prompt]
   * @param {Choose} [options.choose]
   */
  async *streamCaption(source, { prompt, choose = mostProbable } = {}) {
    const ability = this.#ability("caption");
    if (!ability.stepped) {
      throw new ModelError("The file was exported without decode: call caption.");
    }
    const { pixels, prompt: given } = await this.#shown(ability, source, prompt);
    const tokens = this.#captionTokens(ability, pixels, given, choose);
    yield* piecesOf(tokens, [], ability.endIds, ability.target);
  }

  /**
   * The text of a recording, of a model such as Whisper or Moonshine.
   *
   * @param {Blob | Float32Array} source - a WAV file, another that the browser decodes, or samples
   *   from -1 to 1 at `sampleRate`.
   * @param {object} [options]
   * @param {number[]} [options.prompt] - the first tokens of the text, such as those of a language
   *   and a task, which are not a part of it; by default those of the file.
   * @param {Choose} [options.choose] - only of a file with "decode".
   * @returns {Promise<{text: string, tokens: Int32Array, milliseconds: number}>} as of `caption`.
   * @throws {AudioError | TextError} no recording, a damaged one, or one that is too long; `prompt` is
   *   too long or has unknown tokens.
   */
  async transcribe(source, options = {}) {
    const start = performance.now();
    const ability = this.#ability("transcribe");
    if (ability.output) return this.#bestPath(ability, source, options.prompt, start);
    const prompt = checkedPrompt(options.prompt, ability);
    const samples = await this.#samples(ability, source);
    return this.#textFor(ability, samples, prompt, options.choose, start);
  }

  /** The text of a model with CTC: its labels, without repetitions and the blank. */
  async #bestPath(ability, source, prompt, start) {
    if (prompt !== undefined) throw new TextError("A model with CTC takes no prompt.");
    const samples = await this.#samples(ability, source);
    const signature = fitting(ability.signatures, samples.length);
    const outputs = firstRow(await this.#runMedia(signature, ability.input, samples), signature);
    const count = this.labels.length;
    const tokens = [];
    let last = -1;
    for (let i = 0; i < outputs[ability.output].length; i += count) {
      const best = mostProbable(outputs[ability.output].subarray(i, i + count));
      if (best !== last && this.labels[best] !== "") tokens.push(best);
      last = best;
    }
    const text = joined(tokens.map((token) => this.labels[token]), this.labels).trim();
    return { text, tokens: Int32Array.from(tokens), milliseconds: performance.now() - start };
  }

  /**
   * Yields the text of `transcribe` piece by piece, of a file with "encode" and "decode".
   *
   * @param {Blob | Float32Array} source - as in `transcribe`.
   * @param {object} [options] - as in `transcribe`.
   * @param {number[]} [options.prompt]
   * @param {Choose} [options.choose]
   */
  async *streamTranscript(source, { prompt, choose = mostProbable } = {}) {
    const ability = this.#ability("transcribe");
    if (!ability.stepped) {
      throw new ModelError("The file was exported without decode: call transcribe.");
    }
    const given = checkedPrompt(prompt, ability);
    const samples = await this.#samples(ability, source);
    const tokens = this.#captionTokens(ability, samples, given, choose);
    yield* piecesOf(tokens, [], ability.endIds, ability.target);
  }

  /**
   * The outputs of a classifier of sounds, by name.
   *
   * @param {Blob | Float32Array} source - as in `transcribe`.
   * @returns {Promise<Record<string, Float32Array>>}
   * @throws {AudioError}
   */
  async predictAudio(source) {
    const ability = this.#ability("predictAudio");
    const samples = await this.#samples(ability, source);
    const signature = fitting(ability.signatures, samples.length);
    return firstRow(await this.#runMedia(signature, ability.input, samples), signature);
  }

  /** How the model's texts are meant to be chosen, as options of `sampler`; null if the file does not say. */
  get sampling() {
    const { sampling } = this.#abilities.stream?.decoders[0] ?? {};
    return sampling ? optionsOf(sampling) : null;
  }

  /** The number of samples a second that the model hears; null if it hears nothing. */
  get sampleRate() {
    const { transcribe, predictAudio, openStream } = this.#abilities;
    return (transcribe ?? predictAudio ?? openStream)?.rate ?? null;
  }

  /**
   * A source that is read in pieces: audio or readings of a sensor, as they come. Any number of streams
   * may be open at once; each keeps its own states.
   *
   * @returns {SourceStream}
   */
  openStream() {
    return new SourceStream(this.#compiled, this.#ability("openStream"));
  }

  /**
   * Hears audio as it comes, of a model with CTC: its labels are the classes of each output, of which the
   * first, "", is the blank. The text only grows.
   *
   * @returns {Listener}
   */
  listen() {
    const { output } = this.#ability("listen");
    const words = [];
    let last = BLANK;
    const write = (rows) => {
      for (const row of rows) {
        const best = mostProbable(row);
        if (best !== BLANK && best !== last) words.push(this.labels[best]);
        last = best;
      }
      return joined(words, this.labels);
    };
    return new Listener(this.openStream(), output, write, Infinity);
  }

  /**
   * The text that a decoder writes for features, such as those of another model's `openStream`.
   *
   * @param {Float32Array[]} features - at most `length`.
   * @param {object} [options] - as in `transcribe`.
   * @param {number[]} [options.prompt]
   * @param {Choose} [options.choose]
   * @returns {Promise<{text: string, tokens: Int32Array, milliseconds: number}>} as of `caption`.
   * @throws {RangeError | TextError} too many features, or of another width; as `transcribe`.
   */
  async generateFrom(features, options = {}) {
    const start = performance.now();
    const ability = this.#ability("generateFrom");
    const prompt = checkedPrompt(options.prompt, ability);
    const { width, length } = ability;
    if (!Array.isArray(features) || !features.every(isList)) {
      throw new RangeError(`Features must be a list of rows of ${width} numbers.`);
    }
    const wrong = features.find((row) => row.length !== width);
    if (wrong) throw new RangeError(`A feature must have ${width} numbers, not ${wrong.length}.`);
    if (features.length > length) {
      throw new RangeError(`The model reads at most ${length} features, not ${features.length}.`);
    }
    const values = new Float32Array(features.length * width);
    features.forEach((row, i) => values.set(row, i * width));
    return this.#textFor(ability, values, prompt, options.choose, start);
  }

  /** The first run, up to one token. */
  async listenOnce() {
    if (this.abilities.includes("predictAudio")) {
      await this.predictAudio(new Float32Array(this.#ability("predictAudio").shortest));
    }
    if (!this.abilities.includes("transcribe")) return;
    const ability = this.#ability("transcribe");
    if (ability.output) return; // which is that of predictAudio
    const silence = new Float32Array(ability.shortest);
    if (!ability.stepped) return void (await this.transcribe(silence));
    const tokens = this.#captionTokens(ability, silence, ability.defaultPrompt, mostProbable);
    for await (const token of tokens) if (token >= 0) break;
  }

  /** The samples of a recording at the rate of the model, as many as it takes. */
  async #samples({ rate, length, shortest }, source) {
    const samples = await audio.samplesOf(source, rate, length);
    if (samples.length >= shortest) return samples;
    const seconds = (count) => (count / rate).toFixed(3);
    throw new audio.AudioError(
      `The recording is too short: it has ${seconds(samples.length)} seconds, and the model needs ` +
        `${seconds(shortest)}.`,
    );
  }

  async #textFor(ability, values, prompt, choose, start) {
    const tokens = await this.#captioned(ability, values, prompt, choose);
    const text = textOf(until(ability, tokens.subarray(prompt.length)), ability.target);
    return { text, tokens, milliseconds: performance.now() - start };
  }

  async #captioned(ability, pixels, prompt, choose) {
    const { input, wholes, stepped } = ability;
    if (wholes.length && !choose) {
      const signature = fitting(wholes, countOf(ability, pixels));
      return this.#whole({ signature, maxLength: ability.maxLength }, prompt, [input, pixels]);
    }
    if (!stepped) throw new ModelError("The file was exported without decode: leave out choose.");
    const tokens = new Int32Array(ability.maxLength).fill(ability.padId);
    tokens.set(prompt);
    let count = prompt.length;
    for await (const token of this.#captionTokens(ability, pixels, prompt, choose ?? mostProbable)) {
      tokens[count++] = token;
    }
    return tokens;
  }

  #captionTokens(ability, pixels, prompt, choose) {
    const { stepped, input } = ability;
    const encoder = fitting(stepped.encoders, countOf(ability, pixels));
    const encode = () => this.#runMedia(encoder, input, pixels);
    return this.#continue(stepped, encode, prompt, choose);
  }

  /**
   * Yields the codes of each step, one a picture, of a model such as DALL-E.
   *
   * @param {string | number[]} text - or its ids.
   * @param {object} [options]
   * @param {number} [options.rows] - the number of pictures; with guidance each takes two rows of
   *   the batch for which the file was exported.
   * @param {number} [options.guidance] - the scale of classifier-free guidance; 1 is none.
   * @param {Choose} [options.choose] - chooses a code; by default at random, by
   *   `sampler()`. Only of a file with "decode".
   * @throws {TextError | RangeError}
   */
  async *streamCodes(text, { rows = 1, guidance = 1, choose = sampler() } = {}) {
    const ability = this.#ability("draw");
    const { textLength, textSize, firstCode, stepped, whole } = ability;
    const ids = typeof text === "string" ? encode(text, ability) : [...text];
    const empty = Array.from({ length: textLength }, (_, i) => textSize + i); // padding by position
    const prompt = [...ids, ...empty.slice(ids.length)];
    if (!stepped) {
      const codes = (await this.#whole(whole, prompt)).subarray(textLength);
      for (const code of codes) yield [checkedCode(code - firstCode)];
      return;
    }
    const guided = guidance !== 1;
    if (!Number.isFinite(guidance)) throw new RangeError(`guidance must be a number: ${guidance}`);
    checkRows(rows, this.picturesAtOnce(guidance));
    const prompts = [...Array(rows).fill(prompt), ...Array(guided ? rows : 0).fill(empty)];
    const steps = new Steps(this.#compiled, stepped);
    try {
      await steps.read(prompts, textLength - 1);
      let tokens = prompts.map((row) => row.at(-1));
      while (steps.position + 1 < stepped.maxLength) {
        const logits = await steps.decodeRows(tokens);
        const codes = [];
        for (let row = 0; row < rows; row++) {
          const scores = Float64Array.from(logits[row].subarray(firstCode));
          if (guided) {
            const without = logits[rows + row].subarray(firstCode);
            scores.forEach((x, i) => (scores[i] = without[i] + guidance * (x - without[i])));
          }
          codes.push(checkedToken(await choose(scores), scores));
        }
        yield codes;
        tokens = prompts.map((_, row) => firstCode + codes[row % rows]);
      }
    } finally {
      steps.free();
    }
  }

  /** The number of pictures that `streamCodes` draws at once. */
  picturesAtOnce(guidance = 1) {
    const { stepped } = this.#ability("draw");
    if (!stepped) return 1;
    const count = Math.floor(stepped.decoders[0].batch / (guidance === 1 ? 1 : 2));
    if (count) return count;
    throw new ModelError(
      "Guidance takes two rows per picture, and the file was exported for one row.",
    );
  }

  /**
   * The codes of several pictures of a text.
   *
   * @param {string} text
   * @param {object} [options]
   * @param {number} [options.guidance] - as in `streamCodes`.
   * @param {Choose} [options.choose] - as in `streamCodes`.
   * @param {number} [options.candidates] - the number of pictures.
   * @param {(done: number, total: number) => void} [options.onProgress] - steps.
   * @returns {Promise<number[][]>} the codes of each picture.
   */
  async drawCodes(text, { candidates = 1, onProgress = () => {}, ...options } = {}) {
    checkRows(candidates, Infinity);
    const { textLength, stepped, whole } = this.#ability("draw");
    const each = (stepped ?? whole).maxLength - textLength;
    const atOnce = this.picturesAtOnce(options.guidance);
    const total = Math.ceil(candidates / atOnce) * each;
    const found = [];
    let done = 0;
    while (found.length < candidates) {
      const rows = Math.min(atOnce, candidates - found.length);
      const codes = Array.from({ length: rows }, () => []);
      for await (const step of this.streamCodes(text, { ...options, rows })) {
        step.forEach((code, row) => codes[row].push(code));
        onProgress(++done, total);
      }
      for (const picture of codes) found.push(picture);
    }
    return found;
  }

  /**
   * The pictures of codes, of the decoder of a discrete VAE.
   *
   * @param {ArrayLike<number>[]} codes - of each picture.
   * @returns {Promise<ImageData[]>}
   */
  async paint(codes) {
    const { input, signature, length, height, width, channels } = this.#ability("paint");
    const { batch, name, inputs } = signature;
    const { shape, vocabulary_size: size = Infinity } = inputs[input];
    for (const row of codes) {
      if (row.length !== length || !Array.from(row).every((code) => isCount(code) && code < size)) {
        throw new ModelError(`A picture must have ${length} codes, 0 to ${size - 1}: ${[...row]}`);
      }
    }
    const pictures = [];
    for (let start = 0; start < codes.length; start += batch) {
      const part = codes.slice(start, start + batch);
      const rows = new Int32Array(batch * length);
      for (let row = 0; row < batch; row++) rows.set(part[row % part.length], row * length);
      const tensor = new Tensor(rows, shape);
      let outputs;
      try {
        outputs = await this.#compiled.signatures[name].run({ [input]: tensor });
        const values = Object.values(outputs)[0].toTypedArray();
        const each = height * width * channels;
        for (let row = 0; row < part.length; row++) {
          const own = values.subarray(row * each, (row + 1) * each);
          pictures.push(imageOf(own, width, height, channels));
        }
      } finally {
        tensor.delete();
        free(outputs ?? {});
      }
    }
    return pictures;
  }

  /**
   * The vector of a text, of a model that returns one, such as `models.sentence_embedding` or the
   * encoder of texts of CLIP.
   *
   * @param {string} text
   * @param {object} [options]
   * @param {string} [options.prompt] - name of a prompt in the file, "query" for instance, whose text
   *   is put before `text`; by default the file's default prompt, if it has one.
   * @param {number} [options.dimensions] - how many numbers of the vector to keep, of Matryoshka
   *   embeddings; a vector of length 1 is scaled to length 1 again. By default all.
   * @returns {Promise<Float32Array>} of a text with more tokens than the `max_seq_length` of the file,
   *   if it has one, that of the first ones.
   * @throws {TextError}
   */
  async embedText(text, { prompt, dimensions } = {}) {
    const head = sentenceHead(this.manifest);
    const prefix = promptText(head, prompt);
    const ability = this.#ability("predict");
    const { max_seq_length: most = null } = head;
    const limit = most !== null && most <= ability.length ? most : Infinity;
    const { ids, segments } = encodeTyped(prefix ? prefix + text : text, ability, limit);
    return firstDimensions(vectorOf(await this.predictTokens(ids, segments)), dimensions, head);
  }

  /**
   * The vector of a picture, of a model that returns one.
   *
   * @param {ImageBitmapSource} source - a picture, as in `pixels`.
   * @returns {Promise<Float32Array>}
   * @throws {PictureError}
   */
  async embedImage(source) {
    return vectorOf(await this.predictImages(source));
  }

  /**
   * The objects in a picture, found by a model such as DETR.
   *
   * @param {ImageBitmapSource} source - a picture, as in `pixels`.
   * @param {object} [options]
   * @param {number} [options.threshold] - the least probability of a detection.
   * @returns {Promise<{label: string, probability: number, box: number[]}[]>} the most probable
   *   first, with left, top, right and bottom in pixels of the picture.
   * @throws {PictureError}
   */
  async detect(source, { threshold = 0.5 } = {}) {
    const { processor, classes } = this.#ability("detect");
    const picture = await images.pixelsOf(processor, source);
    const { logits, boxes } = await this.predictPixels(picture.pixels);
    const found = [];
    for (let i = 0; i * classes < logits.length; i++) {
      const all = softmax(logits.subarray(i * classes, (i + 1) * classes));
      const known = all.slice(0, -1); // the last: no object
      const best = mostProbable(known);
      if (!(known[best] >= threshold)) continue;
      const box = images.toPicture(processor, boxes.subarray(4 * i, 4 * i + 4), picture);
      found.push({ label: this.labels?.[best] ?? String(best), probability: known[best], box });
    }
    return found.sort((a, b) => b.probability - a.probability);
  }

  /** Frees the memory, which the browser cannot do by itself. */
  delete() {
    this.#compiled.delete();
  }

  #ability(name) {
    const ability = this.#abilities[name];
    if (!ability) {
      const names = Object.keys(this.manifest.signatures).join(", ");
      throw new ModelError(`The file cannot ${name}: it has the signatures ${names}.`);
    }
    if (ability.refusal) throw ability.refusal;
    return ability;
  }

  /** How the file writes text: by its own search, or step by step. */
  #writing() {
    const [name] = this.abilities.filter((ability) => ["generate", "stream"].includes(ability));
    return this.#ability(name ?? (this.#abilities.stream ? "stream" : "generate"));
  }

  /** The tokens of the loop in the file: the prompt, what follows, and padding. */
  async #whole({ signature, maxLength }, prompt, [input, pixels] = []) {
    const { inputs, outputs, prompt: key } = signature;
    const given = {};
    let padding = 0;
    if (key) {
      const { shape, pad_id: padId } = inputs[key];
      padding = shape[1] - prompt.length; // on the left
      const row = [...Array(padding).fill(padId), ...prompt];
      const rows = new Int32Array(product(shape));
      for (let i = 0; i < shape[0]; i++) rows.set(row, i * shape[1]);
      given[key] = new Tensor(rows, shape);
      for (const [name, spec] of Object.entries(inputs)) {
        if (spec.kind === "padding") given[name] = filled(spec, padding);
      }
    }
    let results;
    try {
      results = await (input
        ? this.#runMedia(signature, input, pixels, given)
        : this.#compiled.signatures[signature.name].run(given));
    } finally {
      free(given);
    }
    try {
      const tokens = results.tokens.toTypedArray().slice(0, outputs.tokens.shape.at(-1));
      return tokens.slice(padding, padding + maxLength);
    } finally {
      free(results);
    }
  }

  /**
   * Runs a signature on the pixels of a picture, or on samples or features, which zeros follow, in all
   * rows of the batch, and on other inputs.
   */
  async #runMedia({ name, batch, inputs }, input, values, others = {}) {
    const { shape, dtype } = inputs[input];
    const size = product(shape.slice(1));
    if (dtype === "uint8" ? values.length !== size : values.length > size) {
      throw new ModelError(`The model reads ${size} values of ${input}, not ${values.length}.`);
    }
    const rows = new ARRAYS[dtype](batch * size);
    for (let row = 0; row < batch; row++) rows.set(values, row * size);
    const tensor = new Tensor(rows, shape);
    try {
      return await this.#compiled.signatures[name].run({ [input]: tensor, ...others });
    } finally {
      tensor.delete();
    }
  }

  /** Runs a signature on one row of tokens, padded, in all rows of the batch. */
  async #run(signature, input, ids, segments = []) {
    const { batch, length, name, inputs } = signature;
    const given = {};
    for (const [key, spec] of Object.entries(inputs)) {
      let values = spec.mask_of ? Array.from(ids, () => 1) : segments;
      if (key === input) {
        checkIds(ids, spec);
        values = withRealPads(ids, spec);
      }
      const rows = new ARRAYS[spec.dtype](batch * length).fill(spec.pad_id ?? 0);
      for (let row = 0; row < batch; row++) rows.set(values, row * length);
      given[key] = new Tensor(rows, [batch, length]);
    }
    try {
      return await this.#compiled.signatures[name].run(given);
    } finally {
      free(given);
    }
  }
}

/**
 * Several models of one file, such as the two encoders of CLIP; made by `loadModel`.
 *
 *     const { image, text } = group.models;
 *     await text.predict("a red bicycle");
 */
export class ModelGroup {
  #compiled;

  constructor(compiled, manifest, size, models) {
    this.#compiled = compiled;
    /** The models by name: `Model`. */
    this.models = models;
    /** What the file says of itself. */
    this.manifest = manifest;
    /** The size of the file, in bytes. */
    this.size = size;
  }

  /** `Model.embedText` of the only model that reads texts. */
  async embedText(text, options) {
    return this.#only("predict", "read texts").embedText(text, options);
  }

  /** `Model.embedImage` of the only model that reads pictures. */
  async embedImage(source) {
    return this.#only("predictImages", "read pictures").embedImage(source);
  }

  /**
   * Hears audio as it comes, of a file with an encoder that reads it in pieces and a decoder. The decoder
   * writes the text anew from all features so far, so an early text may change.
   *
   * @returns {Listener}
   */
  listen() {
    const encoder = this.#only("openStream", "read a source in pieces");
    const decoder = this.#only("generateFrom", "write a text for features");
    const output = checkedFeatures(encoder, decoder);
    const features = [];
    const write = async (rows) => {
      for (const row of rows) features.push(row);
      if (features.length <= decoder.length) return (await decoder.generateFrom(features)).text;
      throw new RangeError(
        `The decoder takes at most ${decoder.length} features, not ${features.length}: begin another ` +
          "listener at a pause.",
      );
    };
    const stream = encoder.openStream();
    return new Listener(stream, output, write, decoder.length * stream.stride);
  }

  /** "listen" if the file has it; what else its models do they tell themselves. */
  get abilities() {
    const does = (ability) => (model) => model.abilities.includes(ability);
    const found = ["openStream", "generateFrom"].map((x) => Object.values(this.models).filter(does(x)));
    return found.every(({ length }) => length === 1) ? ["listen"] : [];
  }

  /** The sample rate of the only model that hears; null if none does. */
  get sampleRate() {
    const rates = Object.values(this.models).map(({ sampleRate }) => sampleRate);
    return rates.find((rate) => rate !== null) ?? null;
  }

  /**
   * Pictures of a text, of a file with `models.dalle` and `models.dvae_decoder`.
   *
   * @param {string} text
   * @param {object} [options] - those of `Model.drawCodes`, and `judge`.
   * @param {number} [options.guidance]
   * @param {Choose} [options.choose]
   * @param {number} [options.candidates]
   * @param {(done: number, total: number) => void} [options.onProgress]
   * @param {ModelGroup} [options.judge] - a file with the two encoders of CLIP, by which the pictures
   *   are sorted, the best first; by default this one, if it has them.
   * @returns {Promise<{image: ImageData, codes: number[], score: number | null}[]>} `score` is the
   *   similarity of the picture and the text; null without a judge.
   * @throws {TextError | RangeError}
   */
  async draw(text, { judge = this.#judges() ? this : null, ...options } = {}) {
    const [artist, painter] = [this.#only("draw", "draw"), this.#only("paint", "decode pictures")];
    const codes = await artist.drawCodes(text, options);
    const pictures = await painter.paint(codes);
    const drawn = pictures.map((image, i) => ({ image, codes: codes[i], score: null }));
    if (!judge) return drawn;
    const words = await judge.embedText(text);
    for (const one of drawn) one.score = cosine(await judge.embedImage(one.image), words);
    return drawn.sort((a, b) => b.score - a.score);
  }

  /** Frees the memory of all its models. */
  delete() {
    this.#compiled.delete();
  }

  #judges() {
    const families = Object.values(this.models).map(({ manifest }) => manifest.model?.family);
    return ["clip_image", "clip_text"].every((family) => families.includes(family));
  }

  #only(ability, does) {
    const found = Object.values(this.models).filter((model) => model.abilities.includes(ability));
    if (found.length !== 1) {
      const names = Object.keys(this.models).join(", ");
      throw new ModelError(
        `${found.length} of the file's models ${does}: choose one of models, ${names}.`,
      );
    }
    return found[0];
  }
}

/** The cosine of the angle between two vectors. */
function cosine(a, b) {
  if (a.length !== b.length) {
    throw new ModelError(
      `The judge's vectors of pictures and texts have different widths, ${a.length} and ${b.length}.`,
    );
  }
  const inner = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return inner(a, b) / Math.max(Math.sqrt(inner(a, a) * inner(b, b)), 1e-12);
}

/** The one vector among a model's outputs; of several, the one named "embedding". */
function vectorOf(outputs) {
  const vectors = Object.values(outputs);
  if (!outputs.embedding && vectors.length !== 1) {
    const names = Object.keys(outputs).join(", ");
    throw new ModelError(`The model must return one vector, but returns ${names}.`);
  }
  return outputs.embedding ?? vectors[0];
}

/** The arguments of the head of sentence embeddings, if the file has one. */
function sentenceHead({ model }) {
  const { kind, arguments: found } = model?.head ?? {};
  return (kind === "sentence_embedding" && found) || {};
}

/**
 * The first numbers of a vector, as `first_dimensions` of keras_tfm/runtime/tasks/embedding.py, which
 * never divides by a length below 1e-6.
 */
function firstDimensions(vector, dimensions, { normalize = true }) {
  if (dimensions === undefined) return vector;
  if (!(Number.isInteger(dimensions) && dimensions >= 1 && dimensions <= vector.length)) {
    throw new RangeError(`dimensions must be an integer in 1..${vector.length}: ${dimensions}`);
  }
  const kept = vector.slice(0, dimensions);
  if (normalize === false) return kept;
  const length = Math.sqrt(Math.max(kept.reduce((sum, x) => sum + x * x, 0), 1e-12));
  return kept.map((x) => x / length);
}

/** The text of a prompt, as `prompt_text` of keras_tfm/runtime/tasks/embedding.py. */
function promptText({ prompts, default_prompt: usual }, name) {
  const chosen = name ?? usual ?? null;
  if (chosen === null) return "";
  const known = isObject(prompts) ? prompts : {};
  if (Object.hasOwn(known, chosen) && isText(known[chosen])) return known[chosen];
  const names = Object.keys(known).join(", ");
  throw new ModelError(`The file has no prompt ${shown(chosen)}: it has [${names}].`);
}

/** The name of the encoder's features, after they were compared with what the decoder reads. */
function checkedFeatures(encoder, decoder) {
  const { widths } = encoder.openStream();
  const [[output, width], ...others] = Object.entries(widths);
  const [{ inputs }] = Object.values(decoder.manifest.signatures);
  const wanted = Object.values(inputs).find(({ shape }) => shape.length === 3)?.shape[2];
  if (!others.length && width === wanted) return output;
  throw new ModelError(`The decoder must read features of width ${width}, but reads ${wanted}.`);
}

// --- The decoding loop -------------------------------------------------------------------------

/** Reads tokens at growing positions; keras_tfm/runtime/decoding/steps.py is the same in Python. */
class Steps {
  #compiled;
  #ability;
  #decoder;
  #caches;
  #states; // typed arrays by name, which are replaced and never written to
  #recent; // the states at earlier positions: after steps, and at the ends of reads
  #ends;
  #encoded = {}; // read by every step, changed by none
  position = 0; // the number of tokens that have been read, after the columns of a prefix

  constructor(compiled, ability) {
    this.#compiled = compiled;
    this.#ability = ability;
    this.#decoder = ability.decoders[0];
    this.#caches = empty(ability.grown, this.#decoder);
    const zeros = ability.states.map((name) => {
      const { shape, dtype } = this.#decoder.inputs[name];
      return [name, new ARRAYS[dtype](product(shape))];
    });
    this.#states = Object.fromEntries(zeros);
    [this.#recent, this.#ends] = [new Map([[0, this.#states]]), new Map([[0, this.#states]])];
  }

  /** Takes the outputs of "encode": a prefix begins the caches, every step reads the others. */
  begin(outputs) {
    const { grown, prefix } = this.#ability;
    const isPrefix = ([name]) => grown.includes(name);
    const columns = Object.fromEntries(Object.entries(outputs).filter(isPrefix));
    this.#encoded = Object.fromEntries(Object.entries(outputs).filter((x) => !isPrefix(x)));
    try {
      if (prefix) this.#write(this.#caches, columns, 0, prefix, 0);
    } finally {
      free(columns);
    }
  }

  /**
   * Reads the tokens from `position` to `end`, in chunks where the file has a prefill: of rows, which
   * fill the batch again and again.
   */
  async read(rows, end) {
    while (this.position < end) {
      const chunk = this.#chunk(end - this.position);
      if (!chunk) {
        await this.decodeRows(rows.map((row) => row[this.position]));
        continue;
      }
      const { start, signature } = chunk;
      const last = Math.min(end, start + signature.length);
      const parts = rows.map((row) => row.slice(start, last));
      free(await this.#run(signature, parts, start));
    }
    remember(this.#ends, this.position, this.#states, END_STATES);
  }

  /** Reads one token; the logits of the next one. */
  async decode(token) {
    return (await this.decodeRows([token]))[0];
  }

  /** Reads one token a row; the logits of the next ones, for each row of the batch. */
  async decodeRows(tokens) {
    this.#grow(this.position + 1);
    const parts = tokens.map((token) => [token]);
    const results = await this.#run(this.#decoder, parts, this.position);
    try {
      const size = this.#decoder.outputs.logits.shape.at(-1);
      const logits = results.logits.toTypedArray();
      const count = logits.length / size;
      return Array.from({ length: count }, (_, row) => logits.slice(row * size, (row + 1) * size));
    } finally {
      free(results);
    }
  }

  /**
   * Forgets what was read from `position` on; with recurrent states also what was read after the last
   * position before it whose states are known.
   */
  rewind(position) {
    if (position >= this.position) return;
    this.position = position;
    if (!this.#ability.states.length) return;
    const kept = [this.#ends, this.#recent];
    const known = kept.flatMap((states) => [...states.keys()]);
    this.position = Math.max(...known.filter((x) => x <= position));
    this.#states = this.#recent.get(this.position) ?? this.#ends.get(this.position);
    for (const states of kept) {
      for (const x of [...states.keys()]) if (x > this.position) states.delete(x);
    }
  }

  fork() {
    const result = new Steps(this.#compiled, this.#ability);
    result.#grow(this.#decoder.capacity);
    this.#write(result.#caches, this.#caches, 0, this.position, 0); // sessions have no prefix
    result.position = this.position;
    result.#states = this.#states;
    [result.#recent, result.#ends] = [new Map(this.#recent), new Map(this.#ends)];
    return result;
  }

  /** The recurrent states: `{ shape, data }` by name. */
  keptStates() {
    const { inputs } = this.#decoder;
    const entries = Object.entries(this.#states);
    return Object.fromEntries(entries.map(([name, data]) => [name, { shape: inputs[name].shape, data }]));
  }

  /** The entries of the positions that have been read: `{ shape, data }` by name. */
  kept() {
    const entries = Object.entries(this.#caches).map(([name, cache]) => {
      const data = cache.toTypedArray();
      const from = [...cache.type.layout.dimensions];
      const axis = columnAxis(name, from, this.#ability.transposed);
      const shape = from.with(axis, this.position);
      const width = product(from.slice(axis + 1));
      const part = new data.constructor(product(shape));
      for (let block = 0; block < product(from.slice(0, axis)); block++) {
        const begin = block * from[axis] * width;
        const columns = data.subarray(begin, begin + this.position * width);
        part.set(columns, block * this.position * width);
      }
      return [name, { shape, data: part }];
    });
    return Object.fromEntries(entries);
  }

  /** Continues after the entries and states that `kept` and `keptStates` returned. */
  restore({ caches, states, position }) {
    if (!position) return;
    this.#states = Object.fromEntries(Object.entries(states).map(([name, { data }]) => [name, data]));
    this.#grow(position);
    const tensors = {};
    try {
      for (const [name, { shape, data }] of Object.entries(caches)) {
        tensors[name] = new Tensor(data, shape);
      }
      this.#write(this.#caches, tensors, 0, position, 0);
    } finally {
      free(tensors);
    }
    this.position = position;
    remember(this.#ends, position, this.#states, END_STATES);
  }

  free() {
    free(this.#encoded);
    free(this.#caches);
    [this.#encoded, this.#caches] = [{}, {}];
  }

  /**
   * The prefill for the next of `count` tokens, and the position where it begins: earlier than the
   * next one, with tokens that it reads again, if it would end after the last position.
   */
  #chunk(count) {
    const { prefills, states } = this.#ability;
    const fits = ({ length, capacity, outputs }) => {
      if (capacity === undefined) return this.position === 0; // of an older file: without caches to read
      // What recurrent states have read, they cannot read again; drafts return those of each token.
      if (states.length && (outputs.logits || this.#start(length) < this.position)) return false;
      return this.#start(length) + length <= capacity && capacity >= this.#decoder.capacity;
    };
    const fitting = prefills.filter(fits); // the shortest first
    if (!fitting.length) return null;
    const full = fitting.filter(({ length }) => length <= count);
    // A padded chunk is worth its time if at least half of it is tokens.
    const padded = fitting.find(({ length }) => length > count && (!full.length || length < 2 * count));
    const length = (padded ?? full.at(-1)).length;
    const [signature] = fitting
      .filter((other) => other.length === length)
      .sort((a, b) => a.capacity - b.capacity);
    if (signature.capacity === undefined) return { signature, start: 0 };
    this.#grow(signature.capacity);
    return { signature, start: this.#start(length) };
  }

  #start(length) {
    return Math.min(this.position, this.#ability.maxLength - length);
  }

  /** Makes the caches at least so long. */
  #grow(columns) {
    if (columns <= this.#decoder.capacity) return;
    const decoder = this.#ability.decoders.find(({ capacity }) => capacity >= columns);
    const larger = empty(this.#ability.grown, decoder);
    this.#write(larger, this.#caches, 0, this.#ability.prefix + this.position, 0);
    free(this.#caches);
    [this.#caches, this.#decoder] = [larger, decoder];
  }

  #write(caches, entries, position, end, start) {
    write(caches, entries, position, end, start, this.#ability.transposed);
  }

  /** Runs a step on rows of tokens, padded, and keeps the new cache entries. */
  async #run({ name, inputs }, tokens, start) {
    const { stepped, positionName, countName, prefix } = this.#ability;
    const { shape, pad_id: padId = 0 } = inputs[stepped];
    const rows = new Int32Array(product(shape)).fill(padId);
    for (let row = 0; row < shape[0]; row++) rows.set(tokens[row % tokens.length], row * shape[1]);
    const own = { [stepped]: new Tensor(rows, shape) };
    if (inputs[positionName]) own[positionName] = filled(inputs[positionName], start);
    if (inputs[countName]) own[countName] = filled(inputs[countName], tokens[0].length);
    for (const [key, data] of Object.entries(this.#states)) own[key] = new Tensor(data, inputs[key].shape);
    const given = { ...this.#encoded, ...this.#caches, ...own };
    const taken = Object.fromEntries(Object.keys(inputs).map((key) => [key, given[key]]));
    try {
      const results = await this.#compiled.signatures[name].run(taken);
      const end = start + tokens[0].length;
      try {
        this.#write(this.#caches, results, prefix + this.position, prefix + end, prefix + start);
        const states = Object.keys(this.#states).map((key) => [key, results[key].toTypedArray()]);
        this.#states = Object.fromEntries(states);
        remember(this.#recent, end, this.#states, RECENT_STATES);
      } catch (error) {
        free(results);
        throw error;
      }
      this.position = end;
      return results;
    } finally {
      free(own);
    }
  }
}

/** Keeps the states at a position, and forgets those that were kept first, except at 0. */
function remember(kept, position, states, most) {
  kept.delete(position);
  kept.set(position, states);
  const others = [...kept.keys()].filter((x) => x);
  for (const x of others.slice(0, -most)) kept.delete(x);
}

/**
 * A text that is continued; made by `Model.session`.
 *
 *     const session = model.session();
 *     await session.append(model.chatMessage("What is the capital of France?"));
 *     for await (const piece of session.stream({ choose: sampler({ temperature: 0.7 }) })) show(piece);
 *     await session.append(model.chatMessage("And of Italy?", { first: false }));
 *     const { text } = await session.generate();
 *     session.delete();
 *
 * After an error it can be used on: `append` has added nothing then, and generation the tokens
 * before the error.
 */
export class Session {
  #steps;
  #ability;
  #file;
  #tokens;
  // How much of the text no call has given, while the session has `length` tokens: `characters` at
  // the end of its complete characters, and the bytes behind them.
  #owed;
  #busy = false;
  #turn = 0;

  constructor(steps, ability, file, tokens = [], owed = null) {
    this.#steps = steps;
    this.#ability = ability;
    this.#file = file; // its checksum
    this.#tokens = [...tokens];
    this.#owed = owed;
  }

  /** All tokens so far. */
  get tokens() {
    return [...this.#tokens];
  }

  /** The number of tokens that still fit. */
  get remaining() {
    return this.#ability.maxLength - this.#tokens.length;
  }

  /**
   * Reads more tokens, in chunks of the exported prompt lengths.
   *
   * @param {string | number[]} text - a text, or ids. The first text gets the tokens that the
   *   tokenizer and the file put before a prompt, later ones get none.
   * @throws {TextError}
   */
  async append(text) {
    const more = this.#tokens.length > 0;
    const ability = { ...this.#ability, length: this.remaining, more, takesUnknown: true };
    const ids = typeof text === "string" ? encode(text, ability) : [...text];
    if (ids.length > this.remaining) {
      throw new TextError(
        `The text is too long: it has ${ids.length} tokens, and ${this.remaining} more fit.`,
      );
    }
    const { vocabulary_size } = this.#ability.decoders[0].inputs[this.#ability.stepped];
    checkIds(ids, { vocabulary_size });
    await this.#alone(async () => {
      this.#turn++;
      const before = this.#tokens.length;
      for (const id of ids) this.#tokens.push(id); // as arguments, a long text overflows the stack
      try {
        await this.#steps.read([this.#tokens], this.#tokens.length - 1);
      } catch (error) {
        this.#cut(before);
        throw error;
      }
    });
  }

  /**
   * Continues the text until an end token, a stop string or a limit. The session then has the
   * generated tokens, but neither the end token nor tokens that reach into a stop string.
   *
   * @param {Parameters<Session["stream"]>[0]} [options] - as in `stream`.
   * @returns {Promise<{text: string, tokens: number[]}>}
   */
  async generate(options) {
    const before = this.#tokens.length;
    let text = "";
    for await (const piece of this.stream(options)) text += piece;
    return { text, tokens: this.#tokens.slice(before) };
  }

  /**
   * Yields the text of `generate` piece by piece. A stream may be left at any piece: the next call
   * begins with the text that was not yielded, such as a character whose last bytes are missing. It
   * cannot go on after another call has changed the session.
   *
   * @param {object} [options]
   * @param {number} [options.maxTokens]
   * @param {Choose} [options.choose]
   * @param {string | string[]} [options.stop] - the text ends before the first of these.
   */
  async *stream({ stop: stops = [], ...options } = {}) {
    const stop = [stops].flat();
    if (!stop.every((text) => isText(text) && text)) {
      throw new RangeError("stop must be texts of at least one character");
    }
    const { target } = this.#ability;
    const carries = this.#owed?.length === this.#tokens.length;
    const { before, given, owed } = this.#before(target, carries ? this.#owed.characters : null);
    const first = this.#tokens.length;
    const run = { ended: "" };
    let [held, made, yielded] = ["", 0, 0]; // characters
    const owe = (characters) => (this.#owed = { length: this.#tokens.length, characters });
    const tokens = this.#generated(options, run, "maxTokens, choose, stop");
    const read = async function* () {
      for await (const token of tokens) {
        owe(made ? made - yielded : owed);
        yield token;
      }
    };
    const ended = () => run.ended !== "maxTokens";
    for await (const piece of piecesOf(read(), before, [], target, { given, ended })) {
      made += piece.length;
      held += piece;
      const found = stop.map((text) => held.indexOf(text)).filter((at) => at >= 0);
      const at = found.length ? Math.min(...found) : held.length - begun(held, stop);
      if (found.length) {
        run.ended = "stop";
        const ids = [...before, ...this.#tokens.slice(first)];
        this.#keep(ids, given + yielded + at, carries ? 0 : before.length);
      }
      const text = held.slice(0, at);
      [held, yielded] = [held.slice(at), yielded + at];
      owe(made - yielded); // the caller may leave the stream here
      if (run.ended && run.ended !== "maxTokens") this.#owed = null;
      if (text) yield text;
      if (found.length) return;
    }
    if (!held) return;
    if (run.ended === "maxTokens") owe(0);
    yield held;
  }

  /** The last tokens, how many characters of their text were given, and how many are owed. */
  #before(target, owed) {
    for (let count = 16; ; count *= 2) {
      const before = this.#tokens.slice(-count);
      const text = textOf(before, target);
      const known = complete(text).length;
      const given = owed === null ? text.length : Math.max(0, known - owed);
      // A decoder may remove a space at the start: of a text, not of the new tokens.
      if (given || count >= this.#tokens.length) return { before, given, owed: known - given };
    }
  }

  /** Removes the last of `ids` until `length` characters are left, or `least` ids. */
  #keep(ids, length, least) {
    let kept = ids.length;
    for (; kept > least; kept--) {
      const text = textOf(ids.slice(0, kept), this.#ability.target);
      if (text.length <= length && text === complete(text)) break;
    }
    this.#cut(this.#tokens.length - ids.length + kept);
  }

  /**
   * Yields the tokens of `stream`, without the end token.
   *
   * @param {{maxTokens?: number, choose?: Choose}} [options]
   */
  async *streamTokens(options) {
    yield* this.#generated(options, {}, "maxTokens, choose");
  }

  async *#generated({ maxTokens = Infinity, choose = mostProbable, ...others } = {}, run, known) {
    checkOptions(others, known);
    if (!(maxTokens === Infinity || (Number.isInteger(maxTokens) && maxTokens > 0))) {
      throw new RangeError(`maxTokens must be an integer of 1 or more: ${maxTokens}`);
    }
    const { endIds, startId } = this.#ability;
    if (!this.#tokens.length && startId !== null) this.#tokens.push(startId);
    if (!this.#tokens.length) throw new TextError("The session is empty: append a prompt.");
    if (!this.remaining) {
      throw new TextError(`The session is full: it has ${this.#tokens.length} tokens.`);
    }
    const first = this.#tokens.length;
    const turn = ++this.#turn;
    for (let count = 0; count < maxTokens && this.remaining; count++) {
      if (turn !== this.#turn) throw new TextError("The session was changed since this stream began.");
      const token = await this.#alone(async () => {
        const last = this.#tokens.length - 1;
        this.#steps.rewind(last);
        await this.#steps.read([this.#tokens], last);
        const logits = await this.#steps.decode(this.#tokens[last]);
        return checkedToken(await choose(logits, this.tokens), logits);
      });
      if (endIds.includes(token)) {
        run.ended = "end";
        return;
      }
      this.#tokens.push(token);
      yield token;
    }
    run.ended = this.#tokens.length - first === maxTokens ? "maxTokens" : "full";
  }

  /** Removes the last `count` tokens. */
  rewind(count) {
    if (!(Number.isInteger(count) && count >= 0 && count <= this.#tokens.length)) {
      throw new RangeError(`count must be 0 to ${this.#tokens.length}: ${count}`);
    }
    this.#checkFree();
    this.#turn++;
    this.#cut(this.#tokens.length - count);
    if (this.#owed?.length > this.#tokens.length) this.#owed = null;
  }

  /** An independent session with the same tokens and a copy of their KV caches. */
  fork() {
    this.#checkFree();
    return new Session(this.#steps.fork(), this.#ability, this.#file, this.#tokens, this.#owed);
  }

  /**
   * The tokens and KV caches, for `Model.session({ restore })`: an object of numbers, strings and
   * typed arrays, which `structuredClone`, IndexedDB and workers take as it is. It belongs to this
   * .tflite file.
   */
  save() {
    this.#checkFree();
    return {
      version: SAVED_VERSION,
      sha256: this.#file,
      tokens: this.tokens,
      owed: this.#owed?.length === this.#tokens.length ? this.#owed.characters : null,
      caches: this.#steps.kept(),
      ...(this.#ability.states.length && {
        states: this.#steps.keptStates(),
        position: this.#steps.position,
      }),
    };
  }

  /** Frees the KV caches, which the browser cannot do by itself. */
  delete() {
    this.#checkFree();
    this.#busy = true; // later calls are refused
    this.#steps.free();
  }

  #cut(length) {
    this.#tokens.length = length;
    this.#steps.rewind(length);
  }

  #checkFree() {
    if (this.#busy) {
      throw new TextError("The session is in use by another call, or was deleted.");
    }
  }

  async #alone(call) {
    this.#checkFree();
    this.#busy = true;
    try {
      return await call();
    } finally {
      this.#busy = false;
    }
  }
}

/** What a saved session holds, after it was compared with the file. */
function checkedSession(saved, ability, sha256) {
  if (!isObject(saved) || saved.version !== SAVED_VERSION) {
    throw new ModelError("This is not a session that this version of model.js saved.");
  }
  if (saved.sha256 !== sha256) {
    throw new ModelError("The session was saved with another file.");
  }
  const { tokens, caches, states = {}, owed = null } = saved;
  const { grown, states: recurrent, decoders, transposed, maxLength, stepped } = ability;
  const { inputs } = decoders[0];
  const size = inputs[stepped].vocabulary_size ?? Infinity;
  const ids = Array.isArray(tokens) && tokens.every((x) => isCount(x) && x < size);
  const named = isObject(caches) && grown.every((name) => isObject(caches[name]));
  const positions = named ? grown.map((name) => {
    const { shape, data } = caches[name];
    const wanted = inputs[name].shape;
    const axis = columnAxis(name, wanted, transposed);
    const fits =
      Array.isArray(shape) &&
      isCount(shape[axis]) &&
      String(wanted.with(axis, shape[axis])) === String(shape) &&
      data instanceof ARRAYS[inputs[name].dtype] &&
      data.length === product(shape);
    return fits ? shape[axis] : -1;
  }) : [-1];
  const [position] = recurrent.length ? [saved.position] : positions;
  const known = isObject(states) && recurrent.every((name) => {
    const { shape, dtype } = inputs[name];
    const { shape: own, data } = states[name] ?? {};
    return String(own) === String(shape) && data instanceof ARRAYS[dtype] && data.length === product(shape);
  });
  const same = known && isCount(position) && positions.every((other) => other === position);
  const counted = owed === null || Number.isInteger(owed);
  if (!ids || !counted || tokens.length > maxLength || !same || position > tokens.length) {
    throw new ModelError("The saved session is damaged: its tokens and caches do not fit the file.");
  }
  const given = owed === null ? null : { length: tokens.length, characters: owed };
  return { tokens, owed: given, caches, states, position };
}

/**
 * A function for `choose` that samples: from the distribution of `runtime.Sampler` in Python, with
 * other random numbers.
 *
 * @param {object} [options] - those of `probabilities`, and
 * @param {number} [options.seed] - for the same tokens each time.
 * @throws {RangeError} an option of the wrong type or out of range.
 */
export function sampler({ seed, ...options } = {}) {
  if (seed !== undefined && !isCount(seed)) throw new RangeError(`seed must be 0 or more: ${seed}`);
  checkSampling(options);
  const random = seed === undefined ? Math.random : randomNumbers(seed);
  const choose = (logits, tokens) => {
    const chances = probabilities(logits, options, tokens);
    let drawn = random() * chances.reduce((a, b) => a + b, 0);
    let last = 0;
    for (let id = 0; id < chances.length; id++) {
      if (!chances[id]) continue;
      if ((drawn -= chances[id]) < 0) return id;
      last = id;
    }
    return last;
  };
  return Object.assign(choose, { options: { seed, ...options } });
}

/**
 * The probability of each token, as `runtime.Sampler.probabilities` in Python: first the repetition
 * penalty and the banned tokens, then temperature, top k, top p and min p.
 *
 * @param {Float32Array} logits
 * @param {object} [options]
 * @param {number} [options.temperature] - 0 takes the most probable token.
 * @param {number} [options.topK] - keeps the k most probable tokens.
 * @param {number} [options.topP] - keeps the smallest set of tokens with this total probability.
 * @param {number} [options.minP] - keeps tokens at least so many times as probable as the first.
 * @param {number} [options.repetitionPenalty] - divides positive logits of the tokens in the text so
 *   far, the prompt included, and multiplies negative ones.
 * @param {number[]} [options.bannedTokens] - ids that are never chosen.
 * @param {number[]} [tokens] - the text so far.
 * @returns {Float64Array}
 * @throws {RangeError} an option out of range, or no token is left.
 */
export function probabilities(logits, options = {}, tokens = []) {
  checkSampling(options);
  const { temperature = 1, topK, topP, minP } = options;
  const { repetitionPenalty: penalty = 1, bannedTokens = [] } = options;
  const x = Float64Array.from(logits);
  if (penalty !== 1) {
    for (const id of new Set(tokens)) x[id] = x[id] > 0 ? x[id] / penalty : x[id] * penalty;
  }
  const unknown = bannedTokens.find((id) => id >= x.length);
  if (unknown !== undefined) {
    throw new RangeError(`bannedTokens must be 0 to ${x.length - 1}: ${unknown}`);
  }
  for (const id of bannedTokens) x[id] = -Infinity;
  const best = mostProbable(x);
  if (!Number.isFinite(x[best]) || x.some(Number.isNaN)) {
    throw new RangeError(`expected a finite logit, got at most ${x[best]}`);
  }
  if (!temperature) return new Float64Array(x.length).fill(1, best, best + 1);
  const largest = x[best];
  for (let id = 0; id < x.length; id++) x[id] = (x[id] - largest) / temperature;
  const keep = (least) => {
    for (let id = 0; id < x.length; id++) if (x[id] < least) x[id] = -Infinity;
  };
  if (topK !== undefined && topK < x.length) keep(x.toSorted().at(-topK));
  if (topP !== undefined) {
    const descending = x.filter((value) => value > -Infinity).sort().reverse();
    const total = descending.reduce((sum, value) => sum + Math.exp(value), 0);
    let [count, sum] = [0, 0];
    while (count < descending.length && sum < topP * total) sum += Math.exp(descending[count++]);
    keep(descending[count - 1]);
  }
  if (minP !== undefined) keep(Math.log(minP));
  const weights = x.map(Math.exp);
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

const SAMPLING = {
  temperature: [(x) => x >= 0 && x < Infinity, "0 or more"],
  topK: [(x) => Number.isInteger(x) && x >= 1, "an integer of 1 or more"],
  topP: [(x) => x > 0 && x <= 1, "more than 0 and at most 1"],
  minP: [(x) => x > 0 && x <= 1, "more than 0 and at most 1"],
  repetitionPenalty: [(x) => x > 0 && x < Infinity, "more than 0"],
};

function checkSampling({ bannedTokens = [], ...numbers }) {
  for (const [name, value] of Object.entries(numbers)) {
    if (!(name in SAMPLING)) {
      const known = [...Object.keys(SAMPLING), "bannedTokens", "seed"].join(", ");
      throw new RangeError(`there is no option ${name}: known are ${known}`);
    }
    const [holds, wanted] = SAMPLING[name];
    if (value !== undefined && !(typeof value === "number" && holds(value))) {
      throw new RangeError(`${name} must be ${wanted}: ${value}`);
    }
  }
  if (!Array.isArray(bannedTokens) || !bannedTokens.every(isCount)) {
    throw new RangeError(`bannedTokens must be ids of tokens: ${bannedTokens}`);
  }
}

/** Uniform numbers of a seed ("mulberry32"). */
function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The number of characters at the end of a text with which a stop string begins. */
function begun(text, stops) {
  let most = 0;
  for (const stop of stops) {
    for (let n = Math.min(stop.length - 1, text.length); n > most; n--) {
      if (text.endsWith(stop.slice(0, n))) most = n;
    }
  }
  return most;
}

/** `Math.min` of any number of numbers: JavaScript limits the number of arguments of a function. */
function smallest(numbers) {
  return numbers.reduce((a, b) => Math.min(a, b), Infinity);
}

function checkedToken(token, logits) {
  if (!(Number.isInteger(token) && token >= 0 && token < logits.length)) {
    throw new RangeError(`choose must return a token, 0 to ${logits.length - 1}: ${token}`);
  }
  return token;
}

// --- Sources in pieces -------------------------------------------------------------------------

/**
 * A source that is read in pieces of a fixed length, of which values may come in any number; made by
 * `Model.openStream`. keras_tfm/runtime/tasks/source_stream.py is the same in Python.
 *
 *     const stream = model.openStream();
 *     for await (const samples of microphone) show(await stream.append(samples));
 *     show(await stream.finish());
 *
 * Calls may overlap: they are answered in their order. After a run that failed the stream cannot go on.
 */
export class SourceStream {
  #compiled;
  #ability;
  #states;
  #waiting; // values of an incomplete piece
  #position = 0; // of what is waiting, in the source
  #end = null;
  #turn = Promise.resolve();

  constructor(compiled, ability) {
    const { signature, states, input, delay, stride, width } = ability;
    const { inputs } = signature;
    this.#compiled = compiled;
    this.#ability = ability;
    const zeros = states.map((key) => [key, arrayFor(inputs[key])]);
    this.#states = Object.fromEntries(zeros);
    this.#waiting = new ARRAYS[inputs[input].dtype]();
    /** The number of positions of the source in a piece. */
    this.pieceLength = inputs[input].shape[1];
    /** The number of values of a position of the source, 1 for audio. */
    this.width = width;
    /** The number of positions of the source by which outputs are late. */
    this.delay = delay;
    /** The number of positions of the source for one of the outputs. */
    this.stride = stride;
    const size = (name) => product(signature.outputs[name].shape.slice(2));
    /** The number of values in a row of each output, by name. */
    this.widths = Object.fromEntries(ability.results.map((name) => [name, size(name)]));
  }

  /** The number of positions of the source so far. */
  get positions() {
    return this.#end ?? this.#position + this.#waiting.length / this.width;
  }

  /**
   * Reads the next values of the source.
   *
   * @param {ArrayLike<number>} values - any number of positions, one after the other; of audio samples
   *   from -1 to 1 at the `sampleRate` of the model, or an Int16Array.
   * @returns {Promise<Record<string, (Float32Array | Int32Array | Uint8Array)[]>>} the outputs that have
   *   become final, by name, a row for each position, behind those of earlier calls.
   * @throws {RangeError} values of another kind or number.
   * @throws {AudioError} samples that are none.
   * @throws {ModelError} the stream has ended, or is too long.
   */
  async append(values) {
    const { input, rate, signature } = this.#ability;
    this.#checkOpen();
    const found = rate
      ? audio.samplesInPiece(values)
      : valuesOfSource(input, values, signature.inputs[input], this.width);
    const reach = this.positions + found.length / this.width + this.delay + this.pieceLength;
    if (reach >= UNKNOWN_END) {
      throw new ModelError(`${input}: a stream has at most ${UNKNOWN_END} positions: end it.`);
    }
    this.#wait(found);
    return this.#read(UNKNOWN_END);
  }

  /**
   * Ends the source.
   *
   * @returns {ReturnType<SourceStream["append"]>} the outputs that waited for later values.
   * @throws {ModelError} the stream has ended, or has got no values.
   */
  async finish() {
    this.#checkOpen();
    const { input } = this.#ability;
    if (!this.positions) throw new ModelError(`${input}: a stream that ends must have got values.`);
    this.#end = this.positions;
    const count = Math.ceil((this.#end + this.delay - this.#position) / this.pieceLength);
    const missing = count * this.pieceLength * this.width - this.#waiting.length;
    this.#wait(new this.#waiting.constructor(missing));
    return this.#read(this.#end);
  }

  #checkOpen() {
    if (this.#end === null) return;
    throw new ModelError(`${this.#ability.input}: the stream has ended: begin another one.`);
  }

  #wait(values) {
    const both = new this.#waiting.constructor(this.#waiting.length + values.length);
    both.set(this.#waiting);
    both.set(values, this.#waiting.length);
    this.#waiting = both;
  }

  /** Runs all complete pieces, after those of earlier calls. */
  #read(end) {
    const size = this.pieceLength * this.width;
    const pieces = [];
    for (; this.#waiting.length >= size; this.#position += this.pieceLength) {
      pieces.push([this.#position, this.#waiting.slice(0, size)]);
      this.#waiting = this.#waiting.subarray(size);
    }
    this.#turn = this.#turn.then(async () => {
      const rows = Object.fromEntries(this.#ability.results.map((name) => [name, []]));
      for (const [position, piece] of pieces) await this.#run(piece, position, end, rows);
      return rows;
    });
    this.#turn.catch(() => {}); // the caller and later calls get the error
    return this.#turn;
  }

  /** Adds the rows that a piece makes final. */
  async #run(piece, position, end, rows) {
    const { signature, input, positionName, endName, states, final } = this.#ability;
    const { name, inputs, outputs } = signature;
    const given = {
      [input]: new Tensor(piece, inputs[input].shape),
      [positionName]: filled(inputs[positionName], position),
      [endName]: filled(inputs[endName], end),
    };
    for (const key of states) given[key] = new Tensor(this.#states[key], inputs[key].shape);
    try {
      const found = await this.#compiled.signatures[name].run(given);
      try {
        this.#states = Object.fromEntries(states.map((key) => [key, found[key].toTypedArray()]));
        const [first, last] = found[final].toTypedArray();
        for (const key of Object.keys(rows)) {
          const [values, width] = [found[key].toTypedArray(), this.widths[key]];
          const count = Math.min(last, outputs[key].shape[1]);
          for (let i = first; i < count; i++) rows[key].push(values.slice(i * width, (i + 1) * width));
        }
      } finally {
        free(found);
      }
    } finally {
      free(given);
    }
  }
}

/**
 * Hears audio as it comes; made by `listen` of a model or of a file of several.
 *
 *     const listener = model.listen();
 *     for await (const samples of microphone) show(await listener.append(samples));
 *     show(await listener.finish());
 *
 * Calls may overlap: they are answered in their order.
 */
export class Listener {
  #stream;
  #output;
  #write;
  #text = "";
  #turn = Promise.resolve();

  constructor(stream, output, write, longest) {
    this.#stream = stream;
    this.#output = output;
    this.#write = write; // the text after further rows
    /** The most samples of which it writes a text: Infinity, or as many as the decoder takes features of. */
    this.longest = longest;
  }

  /** The number of samples so far. */
  get positions() {
    return this.#stream.positions;
  }

  /**
   * Hears the next samples.
   *
   * @param {ArrayLike<number>} samples - as in `SourceStream.append`.
   * @returns {Promise<string>} the text of all that was heard so far.
   * @throws {AudioError | ModelError} as `SourceStream.append`.
   * @throws {RangeError} there are more features than the decoder takes.
   */
  async append(samples) {
    return this.#heard(this.#stream.append(samples));
  }

  /**
   * Ends the audio.
   *
   * @returns {Promise<string>} the text of all of it.
   * @throws {ModelError} the audio has ended, or there was none.
   */
  async finish() {
    return this.#heard(this.#stream.finish());
  }

  #heard(reading) {
    const before = this.#turn;
    const heard = reading.then(async (found) => {
      await before;
      const rows = found[this.#output];
      if (rows.length) this.#text = await this.#write(rows);
      return this.#text;
    });
    this.#turn = heard.catch(() => {});
    return heard;
  }
}

/** Values of a source that is no audio, in the dtype of the file. */
function valuesOfSource(name, values, { dtype, vocabulary_size: size }, width) {
  const whole = dtype !== "float32";
  const most = size ?? { int32: 2 ** 31, uint8: 256 }[dtype];
  const least = size === undefined && dtype === "int32" ? -(2 ** 31) : 0;
  if (!isList(values)) throw new RangeError(`${name} must be a list of numbers, not ${shown(values)}.`);
  if (values.length % width) {
    throw new RangeError(`${name} must have ${width} numbers for each position, not ${values.length} in all.`);
  }
  const fits = (x) => typeof x === "number" && (!whole || (Number.isInteger(x) && x >= least && x < most));
  for (let i = 0; i < values.length; i++) {
    if (fits(values[i])) continue;
    const wanted = whole ? `integers in ${least}..${most - 1}` : "numbers";
    const found = ["number", "bigint"].includes(typeof values[i]) ? values[i] : shown(values[i]);
    throw new RangeError(`${name} must be ${wanted}, not ${found}.`);
  }
  return ARRAYS[dtype].from(values);
}

// --- Text --------------------------------------------------------------------------------------

/** The tokens of a text, as one of the abilities reads it. */
function encode(text, ability) {
  return encodeTyped(text, ability).ids;
}

/**
 * The tokens of a text or of a pair of texts, and the segment of each; of a text with more than `most`
 * tokens, the first ones, and those that the tokenizer adds.
 */
function encodeTyped(text, ability, most = Infinity) {
  if (!isText(text) && !isPair(text)) throw new TextError("A text must be a string.");
  const { source, length, endIds, startId, goesOn, takesUnknown, more } = ability;
  const whole = encoded(source, text, !more);
  let { ids, tokens, token_type_ids: segments = [] } =
    whole.ids.length > most ? startOf(whole, encoded(source, text, false).ids, most) : whole;
  const unknown = unknownTokens(source, tokens, ids, takesUnknown);
  if (unknown.size) {
    const nameless = unknown.delete(source.model.unk_token) && !unknown.size;
    const list = [...unknown].map((token) => `“${token}”`).join(", ");
    throw new TextError(
      `The model has never seen ${nameless ? "any of these characters" : list}.`,
    );
  }
  if (goesOn && !more) {
    // Removes the end token that the tokenizer appends; an end token written in the text stays.
    const ends = (list) => list.length - list.findLastIndex((id) => !endIds.includes(id)) - 1;
    const bare = encoded(source, text, false).ids;
    ids = ids.slice(0, ids.length - Math.max(0, ends(ids) - ends(bare)));
    // A start token that is written in the text, as by a chat template, is there once.
    const start = startId ?? ids[0];
    const starts = (list) => list.concat(null).findIndex((id) => id !== start);
    if (bare[0] === start) ids = ids.slice(Math.max(0, starts(ids) - starts(bare)));
    if (startId !== null && ids[0] !== startId) ids = [startId, ...ids];
    if (!ids.length) throw new TextError("The prompt is empty.");
  } else if (!more) {
    // A tag of a language, as an unknown word, may be a special token, but only the word is text.
    const isAdded = (x) => source.special_tokens.includes(x) && x !== source.model.unk_token;
    if (tokens.every(isAdded)) throw new TextError("There is no text to read.");
  }
  if (ids.length > length) {
    throw new TextError(
      `The text is too long: it has ${ids.length} tokens, and the model reads ${length}.`,
    );
  }
  return { ids: goesOn ? ids : withRealPads(ids, ability.pads, true), segments };
}

/**
 * The tokens for which a text is refused: those without an id and, as by `check_known` of
 * keras_tfm/runtime/tokenizers/tokenizer.py, all unknown ones where no other token says anything.
 */
function unknownTokens(source, tokens, ids, takesUnknown) {
  const nameless = tokens.filter((_, i) => ids[i] === undefined);
  if (nameless.length || takesUnknown) return new Set(nameless);
  const { unk_token } = source.model;
  const unknown = new Set(
    tokens.filter((token) => source.token_to_id(token) === undefined || token === unk_token),
  );
  const added = new Set([...source.get_added_tokens_decoder().values()].map((x) => x.content));
  const says = (token) => !unknown.has(token) && !added.has(token) && /[^ \u2581\u0120]/.test(token);
  return tokens.some(says) ? new Set() : unknown;
}

/**
 * The start of an encoded text, as `encode_start` of keras_tfm/runtime/tokenizers/tokenizer.py: without
 * the last tokens of the text itself, `bare`.
 */
function startOf({ ids, tokens, token_type_ids: segments = [] }, bare, most) {
  const kept = most - (ids.length - bare.length);
  if (kept < 1) throw new TextError(`The tokenizer adds ${most - kept} tokens, of ${most} in all.`);
  const isBare = (start) => bare.every((id, i) => id === ids[start + i]);
  let before = 0;
  while (before < ids.length - bare.length && !isBare(before)) before++;
  const start = (list) => [
    ...list.slice(0, before + kept),
    ...list.slice(before + bare.length),
  ];
  return { ids: start(ids), tokens: start(tokens), token_type_ids: start(segments) };
}

/** What the library makes of a text; of a very long one its calls overflow the stack. */
function encoded(source, text, special) {
  try {
    const [first, text_pair = null] = [text].flat();
    const options = { add_special_tokens: special, return_token_type_ids: true };
    return source.encode(first, { ...options, text_pair });
  } catch (error) {
    throw new TextError(`The tokenizer cannot read the text: ${error.message}.`);
  }
}

/**
 * The tokens of a text, in which a single placeholder becomes one for each feature, as
 * `expand_placeholder` of keras_tfm/runtime/decoding/special_ids.py.
 */
function expandPlaceholder(ids, { id, count }) {
  if (ids.filter((x) => x === id).length !== 1) return ids;
  return ids.flatMap((x) => (x === id ? Array(count).fill(id) : [x]));
}

/** The tokens with which a caption begins, by default those of the file. */
function checkedPrompt(prompt, ability) {
  const { prompts, size, defaultPrompt, placeholder, target, startId, endIds } = ability;
  if (prompt === undefined) return defaultPrompt;
  let ids = prompt;
  if (typeof prompt === "string") {
    const reading = { source: target, length: Infinity, endIds, startId, goesOn: true };
    ids = encode(prompt, { ...reading, takesUnknown: true });
    if (placeholder && !placeholder.group) ids = expandPlaceholder(ids, placeholder);
  }
  ids = [...ids];
  if (!prompts) throw new TextError("The file was exported without a prompt_length: leave out prompt.");
  if (ids.length < 1 || ids.length > prompts) {
    const most = prompts === 1 ? "1 token" : `1 to ${prompts} tokens`;
    throw new TextError(`A prompt of this file must have ${most}, not ${ids.length}.`);
  }
  const wrong = ids.find((id) => !(isCount(id) && id < size));
  if (wrong !== undefined) throw new TextError(`There is no token ${wrong}.`);
  const found = ids.filter((id) => id === placeholder?.id).length;
  const { count, group = count } = placeholder ?? {};
  if (found % group || found > count) {
    const times = group === count ? count : `${group} times an image, at most ${count}`;
    throw new TextError(`A prompt must have the picture's token ${times} times or never, not ${found} times.`);
  }
  if (placeholder?.seesLater && ids.at(-1) === placeholder.id) {
    throw new TextError("A prompt of this file must have text after its last picture.");
  }
  return ids;
}

/** The tokens before the first end token; a row without one is full. */
function until({ endIds }, tokens) {
  const ids = Array.from(tokens);
  const stop = ids.findIndex((id) => endIds.includes(id));
  return stop < 0 ? ids : ids.slice(0, stop);
}

/**
 * A row in which REAL_PAD stands for each padding id that is a token, as `with_real_pads` of
 * keras_tfm/runtime/decoding/special_ids.py; `isText` if a tokenizer made the row.
 */
function withRealPads(ids, { pad_id: padId, padding } = {}, isText = false) {
  const row = Array.from(ids);
  if (padding === undefined) return row;
  const isOther = (id) => id !== padId;
  const start = isText ? 0 : row.findIndex(isOther);
  let end = row.findLastIndex(isOther) + 1;
  if (isText && padding !== "by_id") end = row.length;
  else if (padding === "after_end" && row[end - 1] !== REAL_PAD) end += 1;
  return row.map((id, i) => (id === padId && i >= start && i < end ? REAL_PAD : id));
}

/** Values of pixels (H, W, C) as a picture; clamped arrays round as NumPy does, halves to even. */
function imageOf(values, width, height, channels) {
  const picture = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) picture.data[4 * i + c] = values[i * channels + (c % channels)];
    picture.data[4 * i + 3] = 255;
  }
  return picture;
}

function checkRows(count, most) {
  if (Number.isInteger(count) && count >= 1 && count <= most) return;
  const range = most < Infinity ? `1 to ${most}` : "1 or more";
  throw new RangeError(`the number of pictures must be ${range}: ${count}`);
}

function checkedCode(code) {
  if (code >= 0) return code;
  throw new ModelError(
    "The file generated text where an image should be: export it with SuppressTokens.",
  );
}

/** The given tokens that the generated ones follow. */
function promptOf(ids, { goesOn, startId, length }) {
  if (!goesOn) return [startId];
  if (ids.length >= 1 && ids.length <= length) return [...ids];
  throw new TextError(`A prompt of this file must have 1 to ${length} tokens, not ${ids.length}.`);
}

function textOf(ids, tokenizer) {
  const known = ids.filter((id) => tokenizer.id_to_token(id) !== undefined);
  return known.length ? tokenizer.decode(known, { skip_special_tokens: true }) : "";
}

/**
 * Yields the text that each token adds after `before`, as soon as its characters are complete.
 *
 * A character may take several tokens, and a space may belong to the next token. So the new text is
 * the text of all tokens minus the text that was given: `given` characters of `before`, by default
 * all. If new tokens complete a character whose bytes begin in `before`, the text has it. If `ended`
 * says so after the last token, the text ends with what there is of an incomplete character.
 */
async function* piecesOf(tokens, before, endIds, tokenizer, { given, ended = () => true } = {}) {
  const all = [...before];
  let [begin, end] = [0, all.length];
  let text = textOf(all, tokenizer);
  let known = text.slice(0, given);
  for await (const token of tokens) {
    if (endIds.includes(token)) break;
    all.push(token);
    text = textOf(all.slice(begin), tokenizer);
    if (!text.startsWith(known)) {
      let same = 0;
      while (known[same] === text[same]) same++;
      known = known.slice(0, same); // bytes that were given as U+FFFD are a character now
    }
    const piece = complete(text).slice(known.length);
    if (!piece) continue;
    yield piece;
    known += piece;
    const own = textOf(all.slice(end), tokenizer);
    if (known === text && own) {
      [begin, end] = [end, all.length]; // the next characters need no tokens before these
      text = known = own;
    }
  }
  if (text.length > known.length && ended()) yield text.slice(known.length);
}

/** A decoded text without bytes at its end that are not, or not yet, a character. */
function complete(text) {
  let length = text.length;
  while (text[length - 1] === INCOMPLETE) length--;
  return text.slice(0, length);
}

/** Greedy search. */
function mostProbable(logits) {
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  return best;
}

/**
 * @param {ArrayLike<number>} logits
 * @returns {number[]} the probability of each class.
 */
export function softmax(logits) {
  const highest = logits[mostProbable(logits)];
  const powers = Array.from(logits, (x) => Math.exp(x - highest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((x) => x / sum);
}

// --- Tensors, which live in LiteRT's memory until they are deleted ------------------------------

/** Refuses what is no token: an array of integers would take the rest of a number for one. */
function checkIds(ids, { vocabulary_size: size = Infinity, pad_id: padId, padding }) {
  const isPadding = (id) => id === padId || (padding !== undefined && id === REAL_PAD);
  for (const id of ids) {
    if (!isPadding(id) && !(isCount(id) && id < size)) throw new TextError(`There is no token ${id}.`);
  }
}

/** Refuses the options that a call does not have: they would be ignored. */
function checkOptions(others, known) {
  const [unknown] = Object.keys(others);
  if (unknown) throw new RangeError(`there is no option ${unknown}: known are ${known}`);
}

/** The shortest signature for so many tokens. */
function fitting(signatures, count) {
  const found = signatures.find(({ length }) => count <= length);
  if (found) return found;
  const most = signatures.at(-1).length;
  throw new TextError(`The model reads at most ${most} tokens, not ${count}.`);
}

/** How many samples or features a row of values has; 0 of a picture. */
function countOf({ width }, values) {
  return width ? values.length / width : 0;
}

function arrayFor({ shape, dtype }) {
  return new ARRAYS[dtype](product(shape));
}

function filled(spec, value) {
  return new Tensor(arrayFor(spec).fill(value), spec.shape);
}

function empty(names, { inputs }) {
  return Object.fromEntries(names.map((name) => [name, filled(inputs[name], 0)]));
}

/** The outputs of the first row of a batch, by name; frees the tensors. */
function firstRow(outputs, { batch }) {
  try {
    const rows = Object.entries(outputs).map(([name, tensor]) => {
      const values = tensor.toTypedArray();
      return [name, values.slice(0, values.length / batch)];
    });
    return Object.fromEntries(rows);
  } finally {
    free(outputs);
  }
}

function free(tensors) {
  for (const tensor of Object.values(tensors)) tensor.delete();
}

/**
 * The axis of positions of a cache: of keys and values (B, G, S, K), of transposed ones (B, G, K, S),
 * which files for a GPU have, or of masks (B, S).
 */
function columnAxis(name, shape, transposed) {
  if (transposed.includes(name)) return 3;
  return shape.length === 2 ? 1 : 2;
}

/**
 * Writes entries into the columns `position` to `end` - 1 of the caches of their names. The first
 * column of the entries is `start`, or 0 if they are whole caches.
 */
function write(caches, entries, position, end, start, transposed) {
  const { liteRtWasm } = getGlobalLiteRt();
  for (const [name, cache] of Object.entries(caches)) {
    const data = entries[name].toTypedArray();
    const [to, from] = [cache, entries[name]].map(({ type }) => [...type.layout.dimensions]);
    const axis = columnAxis(name, to, transposed);
    const first = from[axis] === to[axis] ? 0 : start;
    const width = product(to.slice(axis + 1));
    // Into the tensor that there is: a new one would copy the whole cache at every step.
    const buffer = cache.liteRtTensorBuffer;
    const memory = buffer.lock(liteRtWasm.LiteRtTensorBufferLockMode.WRITE);
    try {
      for (let block = 0; block < product(to.slice(0, axis)); block++) {
        const [begin, last] = [position - first, end - first].map(
          (column) => (block * from[axis] + column) * width,
        );
        const part = data.subarray(begin, last);
        const offset = (block * to[axis] + position) * width * data.BYTES_PER_ELEMENT;
        const bytes = new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
        liteRtWasm.HEAPU8.set(bytes, memory + offset);
      }
    } finally {
      buffer.unlock();
    }
  }
}

function product(numbers) {
  return numbers.reduce((a, b) => a * b, 1);
}

// --- The runtime -------------------------------------------------------------------------------

let started; // LiteRT.js is one WebAssembly module a page

function startRuntime(threads, wasm) {
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
    const ready = start(threads, wasm).catch((error) => {
      started = undefined;
      const reason = error instanceof Event ? `no ${error.target.src}` : error.message;
      throw new ModelError(`LiteRT.js did not start: ${reason}`);
    });
    started = { threads, ready };
  }
  return started.ready;
}

async function start(threads, wasm) {
  const folder = wasm === undefined ? wasmFolder() : String(wasm).replace(/\/?$/, "/");
  const { href } = new URL(folder, base());
  // In a worker, Emscripten looks for files beside the worker's script. LiteRT.js deletes the name.
  globalThis.Module = { ...globalThis.Module, locateFile: (name) => href + name };
  await loadLiteRt(href, { threads: threads > 1 });
}

/** Where the import map, or Node, has the WebAssembly files; a bundler knows no such place. */
export function wasmFolder() {
  try {
    return new URL("../wasm/", import.meta.resolve("@litertjs/core")).href;
  } catch {
    throw new ModelError(
      "The WebAssembly files of LiteRT.js are not found: copy the folder wasm of @litertjs/core to " +
        "the server, and give its address as the option wasm.",
    );
  }
}

/** What relative addresses are relative to: the page, or the worker. */
const base = () => globalThis.document?.baseURI ?? globalThis.location?.href;

let images; // image_processor.js, of a page that reads pictures

async function importImages() {
  try {
    images ??= await import("./image_processor.js");
  } catch (error) {
    throw new ModelError(`Pictures need image_processor.js beside model.js: ${error.message}`);
  }
}

let audio; // audio.js, of a page that hears

async function importAudio() {
  try {
    audio ??= await import("./audio.js");
  } catch (error) {
    throw new ModelError(`Audio needs audio.js beside model.js: ${error.message}`);
  }
}

async function bytesOf(source, onProgress) {
  if (source instanceof Uint8Array) return source;
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (source instanceof Blob) return new Uint8Array(await source.arrayBuffer());
  if (isText(source) || source instanceof URL) return download(source, onProgress);
  throw new ModelError("loadModel needs the address of a .tflite file, or its bytes.");
}

async function download(url, onProgress) {
  const name = new URL(url, base()).pathname.split("/").pop() || String(url);
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

/** Reads tables of a flatbuffer; for the tests, too. */
export function tableReader(bytes) {
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
  const long = (at) => (at ? Number(view.getBigUint64(at, true)) : 0);
  return { u32, long, field, vector, tables };
}

/** The metadata of a .tflite file: name -> the bytes, which are a part of `bytes`. */
function readMetadata(bytes) {
  if (new TextDecoder().decode(bytes.subarray(4, 8)) !== "TFL3") {
    throw new ModelError("This is not a .tflite file.");
  }
  const { u32, long, field, vector, tables } = tableReader(bytes);
  const part = (start, length) => {
    if (start + length > bytes.length) throw new RangeError("the file ends too early");
    return bytes.subarray(start, start + length);
  };
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

/** The manifest, after the checksum was compared. */
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
  checkFormat(manifest); // first: another format may sign otherwise
  const expected = String(manifest.sha256);
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
  checkFields(manifest);
  return manifest;
}

// Of keras_tfm/runtime/manifest/manifest.py what this module reads: the fields, and what they hold.

const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const isCount = (x) => Number.isInteger(x) && x >= 0;
const isText = (x) => typeof x === "string";
const isList = (x) => Array.isArray(x) || (ArrayBuffer.isView(x) && x.length !== undefined);
const isIds = (x) => [x].flat().every(isCount);
const orNull = (holds) => (x) => x === null || holds(x);
const optional = (holds) => (x) => x === undefined || holds(x);

const isSize = (x) => Array.isArray(x) && x.length === 2 && x.every((n) => isCount(n) && n > 0);
const RULES = {
  size: isSize,
  resize: (x) => x === null || x === "fit" || (isCount(x) && x > 0) || isSize(x),
  resample: (x) => ["nearest", "bilinear", "bicubic", "lanczos"].includes(x),
  channels: (x) => x === 1 || x === 3,
  background: (x) => isCount(x) && x <= 255,
  longest_edge: optional((x) => isCount(x) && x > 0 && x <= LARGEST_RESIZE),
  num_images: optional(orNull((x) => isCount(x) && x > 0 && x <= LARGEST_RESIZE)),
};
const OWNER = { tokenizers: optional(isObject), images: optional(isObject) }; // the file, or a model
Object.assign(OWNER, { labels: optional((x) => Array.isArray(x) && x.every(isText)) });
const isPair = (x) => Array.isArray(x) && x.length === 2 && x.every(isText);
const isTemplate = (x) => isObject(x) && [x.first, x.answer, x.next].every(isText);
const isSystem = (x) => x === null || isPair(x);
const isRoles = (x) => x === undefined || (Array.isArray(x) && x.every(isText));
OWNER.chat_template = optional((x) => isTemplate(x) && isSystem(x.system) && isRoles(x.trim));
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const OUTER_SPACE = new RegExp(`^${SPACE}|${SPACE}$`, "g"); // that of Python's str.strip
const TENSOR = { shape: (x) => Array.isArray(x) && x.every(isCount), dtype: isText };
const INPUT = { ...TENSOR, kind: isText, padded: (x) => typeof x === "boolean" };
const REAL_PAD = -2; // the padding id as a token, in a row for an input with "padding"
const isPad = (x) => x === -1 || isCount(x); // -1 is padding that is no token
Object.assign(INPUT, { pad_id: optional(isPad), vocabulary_size: optional(isCount) });
Object.assign(INPUT, { placeholder_id: optional(isCount), placeholders: optional(isCount) });
INPUT.placeholder_group = optional((x) => isCount(x) && x > 0);
INPUT.sees_later = optional((x) => typeof x === "boolean");
Object.assign(INPUT, { padding: optional((x) => ["ends", "after_end", "by_id"].includes(x)) });
Object.assign(INPUT, { segments_of: optional(isText), mask_of: optional(isText) });
const isSome = optional((x) => isCount(x) && x > 0);
Object.assign(INPUT, { sample_rate: isSome, shortest: isSome });
const SIGNATURE = { role: isText, inputs: isObject, outputs: isObject };
const WRITING = { max_length: isCount, start_id: orNull(isCount), end_id: orNull(isIds) };
Object.assign(WRITING, { pad_id: isPad, target: isText });
Object.assign(WRITING, { prompt: optional(isText), default_prompt: optional(isIds) });
const isNames = (x) => Array.isArray(x) && x.every(isText);
const optionsOf = (sampling) =>
  Object.fromEntries(Object.entries(sampling).map(([x, y]) => [x.replace(/_(.)/g, (_, a) => a.toUpperCase()), y]));
const isSampling = (x) => {
  try {
    return isObject(x) && Boolean(sampler(optionsOf(x)));
  } catch {
    return false;
  }
};
const STEPS = { ...WRITING, capacity: isCount, transposed: optional(isNames), states: optional(isNames) };
Object.assign(STEPS, { prefix: optional((x) => isCount(x) && x > 0), sampling: optional(isSampling) });
const PIECES = { states: isNames, final: isText, delay: isCount, stride: (x) => isCount(x) && x > 0 };
const SETTINGS = { generate: WRITING, decode: STEPS, stream: PIECES };

function checkFormat(manifest) {
  const format = manifest?.format;
  if (!Number.isInteger(format) || format < 1) {
    throw new ModelError("The file's manifest cannot be read: format must be a positive integer.");
  }
  if (format > FORMAT) {
    throw new ModelError(
      `keras_tfm ${manifest.keras_tfm} wrote the file in format ${format}, and this page reads ` +
        `formats up to ${FORMAT}: it needs a newer model.js.`,
    );
  }
}

function checkFields(manifest) {
  const check = (place, owner, fields) => {
    if (!isObject(owner)) {
      throw new ModelError(`The file's manifest cannot be read: ${place} must be an object.`);
    }
    for (const [key, holds] of Object.entries(fields)) {
      if (!holds(owner[key])) {
        const value = key in owner ? `is ${shown(owner[key])}` : "is missing";
        throw new ModelError(`The file's manifest cannot be read: ${place}.${key} ${value}.`);
      }
    }
  };
  check("manifest", manifest, { signatures: isObject, models: optional(isObject) });
  const owners = Object.entries(manifest.models ?? {}).map(([name, x]) => [`models.${name}`, x]);
  for (const [place, owner] of [["manifest", manifest], ...owners]) {
    check(place, owner, OWNER);
    for (const [name, rules] of Object.entries(owner.images ?? {})) {
      check(`${place}.images.${name}`, rules, RULES);
    }
  }
  for (const [name, signature] of Object.entries(manifest.signatures)) {
    const place = `signatures.${name}`;
    check(place, signature, SIGNATURE);
    check(place, signature, SETTINGS[signature.role] ?? {});
    if (manifest.models) {
      check(place, signature, { model: (x) => isText(x) && Object.hasOwn(manifest.models, x) });
    }
    for (const [kind, fields] of [["inputs", INPUT], ["outputs", TENSOR]]) {
      for (const [key, tensor] of Object.entries(signature[kind])) {
        check(`${place}.${kind}.${key}`, tensor, fields);
      }
    }
    const { role, final } = signature;
    const needed = { generate: ["tokens"], decode: ["logits"], stream: [final] }[role] ?? [];
    check(`${place}.outputs`, signature.outputs, Object.fromEntries(needed.map((x) => [x, isObject])));
    if (signature.role === "decode") {
      const { target, inputs } = signature;
      check(`${place}.inputs`, inputs, { [target]: isObject });
      if (!Object.values(inputs).some(({ kind }) => kind === "position")) {
        throw new ModelError(`The file's manifest cannot be read: ${place} has no position.`);
      }
    }
  }
  for (const [name, own] of modelsIn(manifest)) checkTensors(name && `models.${name}: `, own);
}

function shown(value) {
  const text = String(JSON.stringify(value));
  return text.length > 60 ? `${text.slice(0, 60)}...` : text;
}

const ROLES = { predict: ["input"], encode: ["input"], generate: ["input", "padding"] };
Object.assign(ROLES, { prefill: ["input", "position", "count", "cache", "encoded"] });
Object.assign(ROLES, { decode: ROLES.prefill, stream: ["input", "position", "end", "cache"] });
const NUMBERS = ["position", "count", "end"]; // one for all rows
const LARGEST_REACH = 2 ** 19; // positions of a piece and the delay
const IDS = 2 ** 31; // in 32 bits
const LARGEST_RESIZE = 4096;
const LARGEST_RATE = 1e6; // samples a second

function need(holds, place, found) {
  if (holds) return;
  const value = found === undefined ? "" : `: ${shown(found)}`;
  throw new ModelError(`The file's manifest does not describe it: ${place}${value}.`);
}

const same = (a, b) => String(a) === String(b);
const areBelow = (size, ids) => [ids ?? []].flat().every((id) => id < size);
const isWhole = (dtype) => /^u?int/.test(dtype);
const ofKind = ({ inputs }, kind) => Object.entries(inputs).filter(([, x]) => x.kind === kind);

/**
 * Throws unless the fields of a model agree with its tensors and with each other, so that later code
 * neither allocates nor indexes by a number that no tensor has; the same rules as in
 * keras_tfm/runtime/manifest/checks.py.
 */
function checkTensors(owner, { signatures, images = {}, labels }) {
  const all = Object.entries(signatures).map(([name, x]) => [`${owner}signatures.${name}`, x]);
  const ofRole = (role) => all.filter(([, x]) => x.role === role);
  for (const [place, x] of all) checkInputs(place, x);
  for (const [place, x] of ofRole("generate")) checkGenerate(place, x);
  for (const [place, x] of ofRole("stream")) checkStream(place, x);
  const steps = [...ofRole("decode"), ...ofRole("prefill")];
  if (steps.length) checkDecoders(owner, ofRole("decode"));
  const [[, decode] = []] = steps;
  const capacities = ofRole("decode").map(([, x]) => x.capacity);
  for (const [place, x] of steps) checkStep(place, x, decode, capacities);
  for (const [place, x] of decode ? ofRole("encode") : []) checkEncode(place, x, decode);
  for (const [name, rules] of Object.entries(images)) {
    const inputs = Object.values(signatures).flatMap(({ inputs }) => inputs[name] ?? []);
    checkRules(`${owner}images.${name}`, rules, inputs);
  }
  const [[, predicts] = []] = [...ofRole("predict"), ...ofRole("stream")];
  if (labels && predicts) {
    const outputs = Object.fromEntries(resultsOf(predicts).map((name) => [name, predicts.outputs[name]]));
    const last = ({ shape }) => shape.at(-1);
    const isDetector = outputs.logits && outputs.boxes; // its last class is "no object"
    const sizes = isDetector ? [last(outputs.logits) - 1] : Object.values(outputs).map(last);
    need(sizes.includes(labels.length), `${owner}labels`, labels.length);
  }
}

function checkInputs(place, { role, inputs }) {
  need(Object.hasOwn(ROLES, role), `${place}.role`, role);
  need(Object.keys(inputs).length, `${place}.inputs`, inputs);
  for (const [name, input] of Object.entries(inputs)) {
    const { shape, dtype, kind, pad_id, end_id, vocabulary_size: size = IDS } = input;
    const at = `${place}.inputs.${name}`;
    need(ROLES[role].includes(kind), `${at}.kind`, kind);
    need(shape.length && !shape.includes(0), `${at}.shape`, shape);
    need(size <= IDS && (size === IDS || isWhole(dtype)), `${at}.vocabulary_size`, size);
    const takesIds = isWhole(dtype) && shape.length === 2;
    need(pad_id === undefined || (takesIds && pad_id < size), `${at}.pad_id`, pad_id);
    for (const key of [input.segments_of, input.mask_of].filter((x) => x !== undefined)) {
      const tokens = inputs[key];
      const fits = tokens?.pad_id !== undefined && String(tokens.shape) === String(shape);
      need(fits, `${at} follows tokens of its shape`, key);
    }
    const { sample_rate: rate, shortest = 1 } = input;
    const hears = dtype === "float32" && shape.length === 2 && shortest <= shape[1];
    need(rate === undefined || (hears && rate <= LARGEST_RATE), `${at}.sample_rate`, rate);
    need(input.padding === undefined || pad_id !== undefined, `${at}.padding`, input.padding);
    need(end_id === undefined || (pad_id !== undefined && end_id < size), `${at}.end_id`, end_id);
  }
  const batched = Object.values(inputs).filter(({ kind }) => !NUMBERS.includes(kind));
  need(new Set(batched.map(({ shape }) => shape[0])).size === 1, `${place} has one batch size`);
}

function checkSpecialIds(place, { start_id, pad_id, default_prompt, end_id }, size = IDS) {
  const pad = pad_id === -1 ? null : pad_id;
  for (const [key, ids] of Object.entries({ start_id, pad_id: pad, default_prompt })) {
    need(areBelow(size, ids), `${place}.${key}`, ids);
  }
  need(areBelow(IDS, end_id), `${place}.end_id`, end_id);
}

function checkGenerate(place, signature) {
  const { inputs, outputs, prompt, target, max_length: length, default_prompt = [] } = signature;
  const { shape, dtype } = outputs.tokens;
  const [batch] = Object.values(inputs)[0].shape;
  const areRows = isWhole(dtype) && [2, 3].includes(shape.length) && shape[0] === batch;
  need(areRows, `${place}.outputs.tokens`, shape);
  need(length <= shape.at(-1), `${place}.max_length`, length);
  const scores = outputs.scores?.shape ?? (shape.length === 2 ? [batch] : null);
  need(same(scores, shape.slice(0, -1)), `${place}.outputs.scores`, scores);
  const padding = ofKind(signature, "padding").map(([, x]) => x.shape);
  const wanted = prompt === undefined ? [] : [[batch]];
  need(padding.length === wanted.length && same(padding, wanted), `${place}: padding`, padding);
  need(prompt === undefined || prompt === target, `${place}.prompt`, prompt);
  need(prompt !== undefined || signature.start_id !== null, `${place}.start_id`, null);
  if (prompt === undefined) return checkSpecialIds(place, signature);
  const own = inputs[prompt];
  need(own?.pad_id !== undefined && own.kind === "input", `${place}.inputs.${prompt}`, own);
  need([default_prompt].flat().length <= own.shape[1], `${place}.default_prompt`, default_prompt);
  return checkSpecialIds(place, signature, own.vocabulary_size);
}

/** The model's outputs, of a signature "predict" or "stream". */
function resultsOf({ outputs, final, states = [] }) {
  return Object.keys(outputs).filter((name) => name !== final && !states.includes(name));
}

/** A signature that reads a source in pieces. */
function checkStream(place, signature) {
  const { inputs, outputs, states, final, delay, stride } = signature;
  const told = (x) => shown([x?.shape, x?.dtype]);
  for (const kind of ["input", "position", "end"]) {
    const found = ofKind(signature, kind);
    need(found.length === 1, `${place} needs one argument of kind ${kind}`, found.length);
    const [[name, x]] = found;
    const isRight = kind === "input" || told(x) === told({ shape: [1], dtype: "int32" });
    need(isRight, `${place}.inputs.${name}`, x.shape);
  }
  const caches = ofKind(signature, "cache").map(([name]) => name);
  need(same([...caches].sort(), [...states].sort()), `${place}.states`, states);
  for (const name of states) {
    need(told(inputs[name]) === told(outputs[name]), `${place}.outputs.${name}`, outputs[name]?.shape);
  }
  const isPair = told(outputs[final]) === told({ shape: [1, 2], dtype: "int32" });
  need(isPair && !states.includes(final), `${place}.outputs.${final}`, outputs[final].shape);
  const [[, { shape }]] = ofKind(signature, "input");
  const [batch, length = 0] = shape;
  need(batch === 1 && length && length % stride === 0, `${place}.stride`, stride);
  need(delay + length < LARGEST_REACH, `${place}.delay`, delay);
  const results = resultsOf(signature);
  need(results.length, `${place}.outputs`, Object.keys(outputs));
  for (const name of results) {
    const found = outputs[name].shape;
    need(same(found.slice(0, 2), [1, length / stride]), `${place}.outputs.${name}`, found);
  }
}

/** The signatures "decode" of a loop on the host, which differ in their capacity alone. */
function checkDecoders(owner, decoders) {
  need(decoders.length, `${owner}it has no signature decode`);
  const [[, first]] = decoders;
  const largest = Math.max(...decoders.map(([, x]) => x.capacity));
  need(first.max_length <= largest, `${owner}max_length`, first.max_length);
  const ids = ["start_id", "end_id", "pad_id"];
  const fields = ["target", "max_length", ...ids, "prefix", "transposed", "states", "sampling"];
  for (const [place, x] of decoders) {
    for (const key of fields) need(shown(x[key]) === shown(first[key]), `${place}.${key}`, x[key]);
    checkSpecialIds(place, x, x.inputs[x.target].vocabulary_size);
  }
}

/** A decode signature or a prefill: its tokens, its position and its caches. */
function checkStep(place, signature, decode, capacities) {
  const { inputs, outputs, capacity } = signature;
  const { target, transposed = [], prefix = 0, max_length: length } = decode;
  const positions = ofKind(signature, "position").map(([, x]) => x);
  const areNumbers = positions.every((x) => isWhole(x.dtype) && product(x.shape) === 1);
  const count = Number(capacity !== undefined);
  need(areNumbers && positions.length === count, `${place} has one position`);
  need(!count || capacities.includes(capacity), `${place}.capacity`, capacity);
  const { pad_id, kind, shape } = inputs[target] ?? {};
  const most = signature.role === "decode" ? 1 : Math.min(length, capacity ?? length);
  const takesIds = pad_id !== undefined && kind === "input" && shape[1] <= most;
  const batch = decode.inputs[target].shape[0];
  need(takesIds && shape[0] === batch, `${place}.inputs.${target}`, shape);
  const keptBy = (x) => Object.keys(x.outputs).filter((name) => name !== "logits").sort();
  need(same(keptBy(signature), keptBy(decode)), `${place}.outputs`, keptBy(signature));
  checkStates(place, signature, decode);
  const names = keptBy(decode).filter((name) => !(decode.states ?? []).includes(name));
  need(transposed.every((name) => names.includes(name)), `${place}.transposed`, transposed);
  const widths = [shape[1], prefix + Math.max(...capacities)];
  for (const name of names) {
    const { shape: columns, dtype } = outputs[name];
    const axis = columnAxis(name, columns, transposed);
    const hasColumns = axis < columns.length && widths.includes(columns[axis]);
    need(hasColumns, `${place}.outputs.${name}`, columns);
    const others = decode.outputs[name].shape;
    const isAlike = others.length === columns.length;
    need(isAlike && same(others.with(axis, 0), columns.with(axis, 0)), `${place}.${name}`, columns);
    if (!count) continue;
    const { [name]: cache = {} } = inputs;
    const wanted = [columns.with(axis, prefix + capacity), dtype, "cache"];
    const isRight = same(wanted, [cache.shape, cache.dtype, cache.kind]);
    need(isRight, `${place}.inputs.${name}`, cache.shape);
  }
  for (const [name, x] of Object.entries(inputs)) {
    const own = name === target || names.includes(name) ? x : (decode.inputs[name] ?? x);
    const isShared = same([x.shape, x.dtype, x.kind], [own.shape, own.dtype, own.kind]);
    need(isShared, `${place}.inputs.${name}`, x.shape);
  }
  const values = product(shape) * decode.outputs.logits.shape.at(-1);
  const logits = outputs.logits?.shape;
  need(!logits || product(logits) === values, `${place}.outputs.logits`, logits);
}

/** The recurrent states of a step, and the number of a prefill's tokens that change them. */
function checkStates(place, { role, inputs, outputs }, { states = [], target, outputs: known }) {
  need(states.every((name) => known[name]), `${place}.states`, states);
  const verifies = role !== "decode" && outputs.logits; // it returns the states after each token
  for (const name of states) {
    const { shape, dtype, kind } = inputs[name] ?? {};
    need(kind === "cache" && shape.length, `${place}.inputs.${name}`, shape);
    const wanted = verifies ? [shape[0], inputs[target].shape[1], ...shape.slice(1)] : shape;
    const output = outputs[name];
    need(same([wanted, dtype], [output.shape, output.dtype]), `${place}.outputs.${name}`, output.shape);
  }
  const counts = ofKind({ inputs }, "count").map(([, { shape, dtype }]) => [shape, dtype]);
  const wanted = states.length && role !== "decode" && !verifies ? [[[1], "int32"]] : [];
  need(same(counts, wanted), `${place} has one count if a prefill changes states`, counts);
}

/** What "encode" returns for "decode": all of a constant argument, or the columns of a prefix. */
function checkEncode(place, { outputs }, decode) {
  const { transposed = [], states = [], prefix = 0 } = decode;
  for (const [name, { shape, dtype }] of Object.entries(outputs)) {
    const own = decode.inputs[name];
    if (!own) continue;
    if (states.includes(name)) need(false, `${place}.outputs.${name}: a state`, shape);
    const axis = columnAxis(name, own.shape, transposed);
    const wanted = decode.outputs[name] ? own.shape.with(axis, prefix) : own.shape;
    need(same([wanted, own.dtype], [shape, dtype]), `${place}.outputs.${name}`, shape);
  }
}

/** The shape of a row of pixels: (H, W, C), or of several images (N, H, W, C). */
function shapeOf({ size, channels, num_images: count }) {
  return [...(count ? [count] : []), ...size, channels];
}

/** The rules for the pictures of an input, of all signatures that have it. */
function checkRules(place, processor, inputs) {
  const { size, resize, longest_edge: longest } = processor;
  const wanted = shapeOf(processor);
  const fits = ({ shape, dtype }) => dtype === "uint8" && same(shape.slice(1), wanted);
  if (longest !== undefined) need(size[0] === size[1], `${place}.size`, size);
  need(inputs.length && inputs.every(fits), `${place}.size`, size);
  const most = Math.max(LARGEST_RESIZE, 2 * size[0], 2 * size[1]);
  const edges = [resize].flat().filter((edge) => Number.isInteger(edge));
  need(areBelow(most + 1, edges), `${place}.resize`, resize);
}

/** Throws unless the file has the manifest's signatures. */
function compareSignatures(manifest, compiled) {
  for (const [name, signature] of Object.entries(manifest.signatures)) {
    const runner = compiled[name];
    if (!runner) throw new ModelError(`The file has no signature ${name}, which its manifest names.`);
    for (const [kind, details] of [
      ["inputs", runner.getInputDetails()],
      ["outputs", runner.getOutputDetails()],
    ]) {
      const told = Object.entries(signature[kind]).map(([key, x]) => [key, x.dtype, ...x.shape]);
      const found = details.map((x) => [x.name, x.dtype, ...x.shape]);
      if (String(told.map(String).sort()) !== String(found.map(String).sort())) {
        throw new ModelError(`The manifest's ${kind} of ${name} are not those of the file.`);
      }
    }
  }
}

/** The text of labels of CTC, which are joined by spaces unless one has a space. */
function joined(found, labels) {
  return found.join(labels.some((label) => label.includes(" ")) ? "" : " ");
}

/** The abilities of a file by name; an unsupported one holds its error as `refusal`. */
function readAbilities(manifest, metadata) {
  for (const [name, { inputs, outputs }] of Object.entries(manifest.signatures)) {
    for (const [key, { dtype }] of [...Object.entries(inputs), ...Object.entries(outputs)]) {
      if (!(dtype in ARRAYS)) {
        throw new ModelError(
          `LiteRT.js cannot load the file: ${key} of its signature ${name} is ${dtype}, and it ` +
            `takes ${Object.keys(ARRAYS).join(", ")}.`,
        );
      }
    }
  }
  const readers = { generate: readGenerate, stream: readStream, predict: readPredict };
  Object.assign(readers, { predictImages: readImages, detect: readDetect, caption: readCaption });
  Object.assign(readers, { transcribe: readTranscribe, predictAudio: readPredictAudio });
  Object.assign(readers, { openStream: readPieces, listen: readListen, generateFrom: readFeatures });
  Object.assign(readers, { draw: readDraw, paint: readPaint });
  const abilities = {};
  for (const [name, read] of Object.entries(readers)) {
    try {
      const ability = read(manifest, metadata);
      if (ability) abilities[name] = ability;
    } catch (error) {
      if (!(error instanceof ModelError)) throw error;
      abilities[name] = { refusal: error };
    }
  }
  const found = Object.values(abilities);
  if (!found.length) {
    throw new ModelError(
      "The file has no signature that reads or writes text, reads pictures or speech, or reads in pieces.",
    );
  }
  if (found.every(({ refusal }) => refusal)) throw found[0].refusal;
  return abilities;
}

function readGenerate(manifest, metadata) {
  const signatures = byLength(manifest, "generate");
  if (!signatures.length) return null;
  refuseOthers(manifest, signatures[0]);
  return {
    ...readSource(signatures, manifest, metadata),
    ...readTarget(signatures[0], manifest, metadata),
    signatures,
  };
}

function readPredict(manifest, metadata) {
  const signatures = byLength(manifest, "predict");
  if (!signatures.length || ofPictures(signatures[0]) || ofAudio(signatures[0])) return null;
  return { ...readSource(signatures, manifest, metadata), signatures, takesUnknown: true };
}

/** The name of a signature's input of samples, if it has one. */
function audioOf({ inputs }) {
  return Object.keys(inputs).find((name) => inputs[name].sample_rate !== undefined);
}

const ofAudio = (signature) => audioOf(signature) !== undefined;

/** Whether a signature has an input of pixels, (B, H, W, C) or (B, N, H, W, C). */
function ofPictures({ inputs }) {
  const isPixels = ({ dtype, shape }) => dtype === "uint8" && [4, 5].includes(shape.length);
  return Object.values(inputs).some(isPixels);
}

function readImages(manifest) {
  const [signature] = byLength(manifest, "predict");
  if (!signature || !ofPictures(signature)) return null;
  return readPicture(signature, manifest);
}

/** The only input of a signature, beside those of `beside`: a picture. */
function readPicture(signature, manifest, beside = []) {
  const [input, ...others] = Object.keys(signature.inputs).filter((name) => !beside.includes(name));
  const processor = manifest.images?.[input];
  if (others.length) {
    const names = [input, ...others].join(", ");
    throw new ModelError(`This page runs models of one picture, not of ${names}.`);
  }
  if (!processor) {
    throw new ModelError(`The file has no rules for its ${input}: export it with images=.`);
  }
  const found = shapeOf(processor);
  if (!same(signature.inputs[input].shape.slice(1), found)) {
    throw new ModelError(`The file's rules give ${input} of ${found}, its model another size.`);
  }
  return { input, signature, processor };
}

function readDetect(manifest) {
  const [signature] = byLength(manifest, "predict");
  if (!signature || !ofPictures(signature)) return null;
  const { logits, boxes } = signature.outputs;
  if (!logits || !boxes) return null;
  return { ...readImages(manifest), classes: logits.shape.at(-1) };
}

/** Text written for a picture. */
function readCaption(manifest, metadata) {
  const writing = readWriting(manifest, metadata, ofPictures);
  return writing && { ...readPicture(writing.signature, manifest, writing.beside), ...writing };
}

/** Text written for speech. */
function readTranscribe(manifest, metadata) {
  const writing = readWriting(manifest, metadata, ofAudio);
  if (!writing) return readBestPath(manifest);
  return { ...readAudio(writing.signature, manifest, writing.beside), ...writing };
}

/** Text by the scores of a model with CTC, of which one label, "", is the blank. */
function readBestPath(manifest) {
  const [signature] = byLength(manifest, "predict");
  const blanks = (manifest.labels ?? []).filter((label) => label === "");
  if (!signature || !ofAudio(signature) || blanks.length !== 1) return null;
  const [[output, { shape }], ...others] = Object.entries(signature.outputs);
  return others.length || shape.length !== 3 ? null : { ...readAudio(signature, manifest), output };
}

/** Outputs for a sound, such as its classes. */
function readPredictAudio(manifest) {
  const [signature] = byLength(manifest, "predict");
  if (!signature || !ofAudio(signature)) return null;
  return readAudio(signature, manifest);
}

/** The only input of a signature, beside those of `beside`: samples, in one or several lengths. */
function readAudio({ role, inputs }, manifest, beside = []) {
  const input = audioOf({ inputs });
  const others = Object.keys(inputs).filter((name) => name !== input && !beside.includes(name));
  if (others.length) {
    throw new ModelError(`This page runs models of one recording, not of ${[input, ...others].join(", ")}.`);
  }
  const signatures = byLength(manifest, role, input);
  const { sample_rate: rate, shortest = 1 } = inputs[input];
  return { input, signatures, rate, shortest, width: 1, length: signatures.at(-1).length };
}

/** A source in pieces. */
function readPieces({ signatures }) {
  const [[name, signature] = []] = Object.entries(signatures).filter(([, x]) => x.role === "stream");
  if (!signature) return null;
  const [input, positionName, endName] = ["input", "position", "end"].map((kind) => ofKind(signature, kind)[0][0]);
  const { states, final, delay, stride, inputs } = signature;
  const { shape, sample_rate: rate } = inputs[input];
  const names = { input, positionName, endName, states, final, results: resultsOf(signature) };
  return { ...names, signature: { ...signature, name }, delay, stride, width: product(shape.slice(2)), rate };
}

/** Words of audio in pieces, as a model with CTC hears them. */
function readListen(manifest) {
  const pieces = readPieces(manifest);
  if (!pieces?.rate || manifest.labels?.[BLANK] !== "") return null;
  const [output, ...others] = pieces.results;
  const { shape } = pieces.signature.outputs[output];
  return others.length || shape.length !== 3 ? null : { output };
}

const areFeatures = ({ kind, dtype, shape }) => kind === "input" && dtype === "float32" && shape.length === 3;
const ofFeatures = ({ inputs }) => Object.values(inputs).some(areFeatures);

/** Text written for features. */
function readFeatures(manifest, metadata) {
  const writing = readWriting(manifest, metadata, ofFeatures);
  if (!writing) return null;
  const { role, inputs } = writing.signature;
  const [input, ...others] = Object.keys(inputs).filter((name) => !writing.beside.includes(name));
  if (others.length || !areFeatures(inputs[input])) {
    throw new ModelError(`This page runs models of one sequence of features, not of ${[input, ...others].join(", ")}.`);
  }
  const signatures = byLength(manifest, role, input);
  return { input, width: inputs[input].shape[2], length: signatures.at(-1).length, ...writing };
}

/**
 * Text written for something that is no text, by the loop in the file ("wholes", of each length), here
 * ("stepped"), or both.
 */
function readWriting(manifest, metadata, isOf) {
  const [signature] = byLength(manifest, "generate");
  const [encoder] = byLength(manifest, "encode");
  if (![signature, encoder].some((x) => x && isOf(x))) return null;
  const steps = encoder && readSteps(manifest);
  const settings = signature ?? steps?.decoders[0];
  if (!settings) throw new ModelError("The file has no signature decode, which its encode needs.");
  const { prompt, inputs, max_length: maxLength, target: name } = settings;
  const beside = [prompt, ...Object.keys(inputs).filter((key) => inputs[key].kind === "padding")];
  const target = readTarget(settings, manifest, metadata);
  const known = (steps?.decoders[0] ?? settings).inputs[name] ?? {};
  const { vocabulary_size: size = Infinity, placeholder_id: id, placeholders: count } = known;
  const { placeholder_group: group, sees_later: seesLater } = known;
  const placeholder = id === undefined || count === undefined ? null : { id, count, group, seesLater };
  const start = settings.start_id ?? null;
  const first = start === null && placeholder ? Array(group ?? count).fill(id) : [start];
  const defaultPrompt = settings.default_prompt ?? first;
  if (defaultPrompt[0] === null) {
    throw new ModelError("The file was exported without a start token.");
  }
  const prompts = signature ? (inputs[prompt]?.shape[1] ?? 0) : maxLength - 1;
  const source = Object.keys((signature ?? encoder).inputs).find((key) => !beside.includes(key));
  const wholes = signature ? byLength(manifest, "generate", source) : [];
  const loops = { signature: signature ?? encoder, wholes, stepped: steps ?? null };
  const rules = { defaultPrompt, prompts, size, maxLength, placeholder };
  return { ...target, ...loops, beside, ...rules };
}

/** DALL-E: codes of pictures after a text. */
function readDraw(manifest, metadata) {
  if (!isArtist(manifest)) return null;
  const names = ["text_length", "text_vocabulary_size", "image_vocabulary_size"];
  const [textLength, textSize, codes] = names.map((name) => {
    const value = manifest.model.arguments?.[name];
    if (isCount(value) && value) return value;
    throw new ModelError(`The file's manifest cannot be read: ${name} is ${value}.`);
  });
  const stepped = readSteps(manifest);
  const [signature] = byLength(manifest, "generate");
  const settings = stepped?.decoders[0] ?? signature;
  if (!settings) throw new ModelError("The file has no signature decode or generate, which draw.");
  if (!stepped && settings.inputs[settings.prompt]?.shape[1] !== textLength) {
    throw new ModelError(`The file was exported with another prompt_length than ${textLength}.`);
  }
  const size = stepped
    ? settings.outputs.logits.shape.at(-1)
    : settings.inputs[settings.prompt].vocabulary_size;
  const total = textLength + textSize + codes;
  if (textLength >= settings.max_length || total !== (size ?? total)) {
    throw new ModelError(`The file's manifest does not describe it: ${names.join(", ")}.`);
  }
  const source = readTokenizer(settings.target, manifest, metadata);
  const whole = stepped ? null : { signature, maxLength: signature.max_length };
  const reading = { source, length: textLength, endIds: [], startId: null, takesUnknown: true };
  return { ...reading, textLength, textSize, firstCode: textLength + textSize, stepped, whole };
}

const isArtist = ({ model }) => model?.family === "dalle";

/** The decoder of a discrete VAE: codes -> pictures. */
function readPaint(manifest) {
  if (manifest.model?.family !== "dvae_decoder") return null;
  const [signature] = byLength(manifest, "predict");
  const [input] = Object.keys(signature?.inputs ?? {});
  const [output] = Object.values(signature?.outputs ?? {});
  const [, height, width, channels] = output?.shape ?? [];
  if (![1, 3].includes(channels)) {
    throw new ModelError("The file has no signature predict that returns pictures of its codes.");
  }
  return { input, signature, length: signature.length, height, width, channels };
}

/** Refuses to write text of a picture's signatures, or with a model that draws. */
function refuseOthers(manifest, signature) {
  if (ofPictures(signature)) {
    throw new ModelError("The model writes text for pictures: call caption.");
  }
  if (ofAudio(signature)) {
    throw new ModelError("The model writes text for speech: call transcribe.");
  }
  if (ofFeatures(signature)) {
    throw new ModelError("The model writes text for features: call generateFrom.");
  }
  if (isArtist(manifest)) {
    throw new ModelError("The model draws: call draw of the file, or drawCodes.");
  }
}

/** Text step by step, from a text. */
function readStream(manifest, metadata) {
  const steps = readSteps(manifest);
  if (!steps) return null;
  const { encoders, decoders, stepped, maxLength } = steps;
  refuseOthers(manifest, encoders[0] ?? decoders[0]);
  const target = readTarget(decoders[0], manifest, metadata);
  if (encoders.length && target.startId === null) {
    throw new ModelError("The file was exported without a start token.");
  }
  const source = encoders.length
    ? readSource(encoders, manifest, metadata)
    : { input: stepped, source: target.target, length: maxLength - 1, goesOn: true };
  return { ...source, ...target, ...steps };
}

/** The decoding loop on the host; keras_tfm/runtime/decoding/host_loop.py is the same in Python. */
function readSteps(manifest) {
  const decoders = byLength(manifest, "decode").sort((a, b) => a.capacity - b.capacity);
  if (!decoders.length) return null;
  const [{ target: stepped, inputs, outputs, max_length: maxLength, prefix = 0, end_id }] = decoders;
  const encoders = byLength(manifest, "encode");
  const { states = [] } = decoders[0];
  const grown = Object.keys(outputs).filter((name) => name !== "logits" && !states.includes(name));
  const positionName = Object.keys(inputs).find((name) => inputs[name].kind === "position");
  const given = [stepped, positionName, ...grown, ...states, ...Object.keys(encoders[0]?.outputs ?? {})];
  const missing = Object.keys(inputs).filter((name) => !given.includes(name));
  if (missing.length) {
    throw new ModelError(`This page has nothing to give as ${missing.join(", ")} of every step.`);
  }
  if (prefix && !encoders.length) {
    throw new ModelError("The file has no signature encode, which begins the caches of its decode.");
  }
  const prefills = byLength(manifest, "prefill", stepped);
  const counts = prefills.flatMap((x) => ofKind(x, "count").map(([name]) => name));
  const { transposed = [] } = decoders.at(-1);
  const endIds = [end_id ?? []].flat();
  const caches = { positionName, countName: counts[0], grown, states, transposed, prefix };
  return { encoders, prefills, decoders, stepped, maxLength, endIds, ...caches };
}

/** The signatures of a role, the shortest first, by their first input or by one of a name. */
function byLength(manifest, role, input) {
  return Object.entries(manifest.signatures)
    .filter(([, signature]) => signature.role === role)
    .map(([name, signature]) => {
      const { shape } = signature.inputs[input ?? Object.keys(signature.inputs)[0]];
      return { ...signature, name, batch: shape[0], length: shape[1] };
    })
    .sort((a, b) => a.length - b.length);
}

/** The input of signatures that read text; others may follow from its tokens. */
function readSource(signatures, manifest, metadata) {
  const { inputs } = signatures[0];
  const names = Object.keys(inputs);
  const tokensOf = (name) => inputs[name].segments_of ?? inputs[name].mask_of;
  const input = names.find((name) => tokensOf(name) === undefined) ?? names[0];
  const { shape, dtype, padded = true, vocabulary_size } = inputs[input];
  const others = names.filter(
    (name) => name !== input && (tokensOf(name) !== input || !(inputs[name].dtype in ARRAYS)),
  );
  if (others.length || shape.length !== 2 || dtype !== "int32" || !padded) {
    if (others.some((name) => inputs[name].kind === "padding")) {
      const instead = "which are stepped here: export it with the signatures prefill and decode";
      throw new ModelError(`The generate of the file takes prompts, ${instead}.`);
    }
    const known = [input, ...others].join(", ");
    throw new ModelError(`This page runs models of one padded row of tokens, not of ${known}.`);
  }
  const source = readTokenizer(input, manifest, metadata);
  checkSize(source, vocabulary_size);
  const length = signatures.at(-1).length;
  return { input, source, length, goesOn: false, pads: inputs[input] };
}

/** The settings of signatures that generate text. */
function readTarget(signature, manifest, metadata) {
  const { target: name, start_id, end_id, pad_id, inputs } = signature;
  const target = readTokenizer(name, manifest, metadata);
  checkSize(target, inputs[name]?.vocabulary_size);
  return { target, startId: start_id, endIds: [end_id ?? []].flat(), padId: pad_id };
}

function checkSize(tokenizer, size = Infinity) {
  const known = tokenizer.model.vocab.length; // by id, so this is one more than the largest
  if (known > size) {
    throw new ModelError(`The file's tokenizer has ${known} tokens, its model only ${size}.`);
  }
}

/** The step of a pre-tokenizer, in which splits with other behaviors match the pieces instead. */
function withKnownSplits(step) {
  if (step?.type === "Sequence") {
    return { ...step, pretokenizers: step.pretokenizers.map(withKnownSplits) };
  }
  const { type, pattern, behavior, invert } = step ?? {};
  const name = String(behavior).toLowerCase();
  if (type !== "Split" || SPLIT_BEHAVIORS.includes(name)) return step;
  const found = pattern.Regex ?? pattern.String.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  const other = `(?:(?!${found})[\\s\\S])`;
  const pieces = {
    mergedwithprevious: `${other}*(?:${found})|${other}+`,
    mergedwithnext: `(?:${found})${other}*|${other}+`,
    contiguous: `(?:${found})+|${other}+`,
  };
  if (invert || !Object.hasOwn(pieces, name)) throw new Error(`it splits with ${behavior}`);
  return { type, pattern: { Regex: pieces[name] }, behavior: "Isolated", invert: true };
}

function readTokenizer(key, manifest, metadata) {
  const name = manifest.tokenizers?.[key];
  const content = metadata.get(name);
  if (!content) throw new ModelError(`The file has no tokenizer for its ${key}.`);
  if (!name.endsWith(".json")) {
    throw new ModelError(`The tokenizer ${name} is not a tokenizer.json, which this page reads.`);
  }
  if (content.length > LARGEST_TOKENIZER) {
    const [found, most] = [content.length, LARGEST_TOKENIZER].map((x) => Math.round(x / 1e6));
    throw new ModelError(`The tokenizer ${name} has ${found} MB, and this page reads at most ${most}.`);
  }
  try {
    const json = JSON.parse(new TextDecoder().decode(content));
    if (!TOKENIZER_MODELS.includes(json.model.type)) {
      throw new Error(`its model is ${json.model.type}, not one of ${TOKENIZER_MODELS.join(", ")}`);
    }
    checkTokenizer(json, content.length);
    json.pre_tokenizer = withKnownSplits(json.pre_tokenizer);
    // Of a WordLevel model the library makes its "legacy" one, which is the same thing.
    const config = { unk_token: json.model.unk_token, clean_up_tokenization_spaces: false };
    return new Tokenizer(json, config);
  } catch (error) {
    throw new ModelError(`The tokenizer ${name} cannot be read: ${error.message}.`);
  }
}
