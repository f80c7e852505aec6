/**
 * Recordings as samples: WAV files as keras_tfm/runtime/media/wav.py reads and resamples them, other
 * files as the browser decodes them.
 *
 *     import { samplesOf } from "./audio.js";
 *
 *     const samples = await samplesOf(file, 16000); // Float32Array, -1 to 1
 */

const CROSSINGS = 32; // of the low-pass filter, at each side
const CUTOFF = 0.95; // relative to the lower rate
const LARGEST_RATE = 10_000_000; // recorders of ultrasound reach 1 MHz
const LOUDEST = 8; // keras_tfm/runtime/checked_inputs.py
const OPEN_SIZES = [2 ** 31, 2 ** 32]; // wav.py
const NEAR = 1 << 16;
const TABLE = 1 << 22; // weights of the filter that are kept

/** A recording cannot be read; `message` says why. */
export class AudioError extends Error {
  name = "AudioError";
}

/**
 * @param {Blob | Float32Array} source - a File is a Blob; samples have the rate already.
 * @param {number} rate - samples a second of the result.
 * @param {number} [longest] - the most samples of the result.
 * @returns {Promise<Float32Array>} the average of the channels.
 * @throws {AudioError}
 */
export async function samplesOf(source, rate, longest = Infinity) {
  if (source instanceof Float32Array) return checked(source, rate, rate, longest);
  if (!(source instanceof Blob)) throw new AudioError("A recording must be a File, a Blob or samples.");
  const name = source.name || "The recording";
  const bytes = await source.arrayBuffer().catch((error) => {
    throw new AudioError(`${name} cannot be read: ${error.message}`);
  });
  const found = isWav(bytes) ? readWav(bytes, name) : await decoded(bytes, rate, name);
  checked(found.samples, found.rate, rate, longest);
  return resample(found.samples, found.rate, rate);
}

/**
 * A recording as a worker reads it: WAV files as they are, others decoded, which only a page can.
 *
 * @param {Blob} source
 * @param {number} rate - samples a second of what is decoded.
 * @returns {Promise<Blob | Float32Array>}
 * @throws {AudioError}
 */
export async function decodedUnlessWav(source, rate) {
  const bytes = await source.slice(0, 12).arrayBuffer();
  return isWav(bytes) ? source : samplesOf(source, rate);
}

function checked(samples, rate, newRate, longest) {
  if (!samples.length) throw new AudioError("The recording has no samples.");
  const seconds = (count) => (count / newRate).toFixed(2);
  const count = resampledLength(samples.length, rate, newRate);
  if (count > longest) {
    throw new AudioError(
      `The recording is too long: it has ${seconds(count)} seconds, and the model reads at most ` +
        `${seconds(longest)}.`,
    );
  }
  return notTooLoud(samples, "The recording");
}

function notTooLoud(samples, name) {
  let largest = 0;
  for (const x of samples) largest = Math.max(largest, Math.abs(x)); // NaN stays NaN
  if (largest <= LOUDEST) return samples;
  throw new AudioError(`${name} must have samples from -1 to 1, not ${largest}.`);
}

/**
 * The samples of a part of a recording, any number of them.
 *
 * @param {ArrayLike<number>} values - from -1 to 1, or an Int16Array.
 * @returns {Float32Array}
 * @throws {AudioError}
 */
export function samplesInPiece(values) {
  if (values instanceof Int16Array) return Float32Array.from(values, (x) => x / 2 ** 15);
  const areFloats = [Float32Array, Float64Array, Array].some((kind) => values instanceof kind);
  if (!areFloats || (Array.isArray(values) && !values.every((x) => typeof x === "number"))) {
    throw new AudioError("A part of a recording must be samples from -1 to 1, or an Int16Array.");
  }
  return notTooLoud(Float32Array.from(values), "A part of a recording");
}

// --- Files -------------------------------------------------------------------------------------

const tag = (view, at) => String.fromCharCode(...new Uint8Array(view.buffer, at, 4));

function isWav(bytes) {
  const view = new DataView(bytes);
  return bytes.byteLength >= 12 && tag(view, 0) === "RIFF" && tag(view, 8) === "WAVE";
}

function readWav(bytes, name) {
  const view = new DataView(bytes);
  let form = null;
  for (let at = 12; at + 8 <= bytes.byteLength; ) {
    const size = view.getUint32(at + 4, true);
    const rest = bytes.byteLength - at - 8;
    const part = new DataView(bytes, at + 8, Math.min(size, rest));
    if (tag(view, at) === "fmt ") form = part;
    else if (tag(view, at) === "data") {
      if (isOpen(size, view)) return samplesIn(new DataView(bytes, at + 8), form, name);
      if (rest >= size) return samplesIn(part, form, name);
      const missing = `${size - rest} of its ${size} bytes of samples are missing`;
      throw new AudioError(`${name} is damaged: ${missing}.`);
    }
    at += 8 + size + (size % 2);
  }
  throw new AudioError(`${name} is damaged: it has no samples.`);
}

/** Whether the size of the samples was not known yet when the header was written. */
function isOpen(size, view) {
  if (size === 0) return view.getUint32(4, true) + 8 !== view.byteLength;
  return OPEN_SIZES.some((limit) => limit - NEAR <= size && size <= limit);
}

function samplesIn(body, form, name) {
  if (!form || form.byteLength < 16) {
    throw new AudioError(`${name} is damaged: it has samples of an unknown format.`);
  }
  let kind = form.getUint16(0, true);
  const [channels, rate, bits] = [form.getUint16(2, true), form.getUint32(4, true), form.getUint16(14, true)];
  if (kind === 0xfffe && form.byteLength >= 26) kind = form.getUint16(24, true);
  const readers = {
    "1 8": (at) => body.getUint8(at) / 128 - 1,
    "1 16": (at) => body.getInt16(at, true) / 2 ** 15,
    "1 24": (at) => (body.getUint16(at, true) + body.getInt8(at + 2) * 2 ** 16) / 2 ** 23,
    "1 32": (at) => body.getInt32(at, true) / 2 ** 31,
    "3 32": (at) => body.getFloat32(at, true),
    "3 64": (at) => body.getFloat64(at, true),
  };
  const read = readers[`${kind} ${bits}`];
  if (!read) {
    throw new AudioError(`${name} must have PCM of 8 to 32 bits or floats, not ${bits} bits of format ${kind}.`);
  }
  if (!channels || !rate || rate > LARGEST_RATE) {
    throw new AudioError(`${name} is damaged: it has ${channels} channels at ${rate} Hz.`);
  }
  const width = bits / 8;
  const samples = new Float32Array(Math.floor(body.byteLength / (channels * width)));
  for (let i = 0; i < samples.length; i++) {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += read((i * channels + c) * width);
    samples[i] = sum / channels;
  }
  return { samples, rate };
}

/** What the browser decodes, at the rate of the model: MP3, AAC, Opus and others. */
async function decoded(bytes, rate, name) {
  const context = new OfflineAudioContext(1, 1, rate);
  const buffer = await context.decodeAudioData(bytes).catch(() => {
    throw new AudioError(`${name} is not a recording that this browser can read.`);
  });
  const samples = new Float32Array(buffer.length);
  const { numberOfChannels: channels } = buffer;
  for (let c = 0; c < channels; c++) {
    buffer.getChannelData(c).forEach((x, i) => (samples[i] += x / channels));
  }
  return { samples, rate };
}

// --- Rates -------------------------------------------------------------------------------------

function resampledLength(count, rate, newRate) {
  return Math.ceil((count * newRate) / rate);
}

function divisor(a, b) {
  return b ? divisor(b, a % b) : a;
}

/**
 * The same sound at another rate, by band-limited interpolation: a sinc function times a Hann window,
 * with 32 zero crossings at each side.
 */
export function resample(samples, rate, newRate) {
  if (rate === newRate) return samples;
  const common = divisor(rate, newRate);
  const [before, after] = [rate / common, newRate / common];
  const base = Math.min(before, after) * CUTOFF;
  const width = Math.min(Math.ceil((CROSSINGS * before) / base), samples.length);
  const result = new Float32Array(resampledLength(samples.length, rate, newRate));
  // The weights repeat after `after` outputs.
  const phases = Math.min(after, result.length);
  const isTabled = phases * (2 * width + 2) <= TABLE;
  const tables = new Map();
  for (let i = 0; i < result.length; i++) {
    const phase = i % after;
    const block = Math.floor(i / after) * before;
    const origin = Math.floor((phase * before) / after);
    let weights = tables.get(phase);
    if (!weights) {
      weights = weightsOf(phase / after, before, origin, width, base);
      if (isTabled) tables.set(phase, weights);
    }
    const start = block + origin - width;
    const end = Math.min(weights.length, samples.length - start);
    let sum = 0;
    for (let j = Math.max(0, -start); j < end; j++) sum += samples[start + j] * weights[j];
    result[i] = sum;
  }
  return result;
}

/**
 * `resample` of a sound that comes in parts: the same samples, each as soon as the later ones that it
 * depends on have come.
 */
export class Resampler {
  #before;
  #after;
  #base;
  #width;
  #kept = new Float32Array(); // samples from `#first` on
  #first = 0;
  #count = 0; // of results
  #tables = new Map();

  constructor(rate, newRate) {
    const common = divisor(rate, newRate);
    [this.#before, this.#after] = [rate / common, newRate / common];
    this.#base = Math.min(this.#before, this.#after) * CUTOFF;
    this.#width = Math.ceil((CROSSINGS * this.#before) / this.#base);
  }

  /**
   * @param {Float32Array} samples - the next ones.
   * @returns {Float32Array} those that follow from all so far.
   */
  append(samples) {
    if (this.#before === this.#after) return samples;
    const all = new Float32Array(this.#kept.length + samples.length);
    all.set(this.#kept);
    all.set(samples, this.#kept.length);
    const end = this.#first + all.length;
    const found = [];
    let start = this.#start(this.#count);
    for (; start + 2 * this.#width + 2 <= end; start = this.#start(this.#count)) {
      const weights = this.#weights(this.#count++ % this.#after);
      let sum = 0;
      for (let j = Math.max(0, -start); j < weights.length; j++) {
        sum += all[start - this.#first + j] * weights[j];
      }
      found.push(sum);
    }
    const first = Math.max(this.#first, start);
    this.#kept = all.slice(first - this.#first);
    this.#first = first;
    return Float32Array.from(found);
  }

  /** The last results, as if silence followed. */
  finish() {
    if (this.#before === this.#after) return new Float32Array();
    const total = Math.ceil(((this.#first + this.#kept.length) * this.#after) / this.#before);
    const missing = total - this.#count;
    return this.append(new Float32Array(2 * this.#width + 2)).slice(0, missing);
  }

  /** The first sample that a result needs. */
  #start(i) {
    return Math.floor((i * this.#before) / this.#after) - this.#width;
  }

  #weights(phase) {
    let weights = this.#tables.get(phase);
    if (!weights) {
      const origin = Math.floor((phase * this.#before) / this.#after);
      weights = weightsOf(phase / this.#after, this.#before, origin, this.#width, this.#base);
      if ((this.#tables.size + 1) * weights.length <= TABLE) this.#tables.set(phase, weights);
    }
    return weights;
  }
}

function weightsOf(time, before, origin, width, base) {
  const weights = new Float64Array(2 * width + 2);
  for (let j = 0; j < weights.length; j++) {
    const times = ((origin - width + j) / before - time) * base;
    const sinc = times ? Math.sin(times * Math.PI) / (times * Math.PI) : 1;
    const inside = Math.max(-1, Math.min(1, times / CROSSINGS));
    weights[j] = (sinc * Math.cos((inside * Math.PI) / 2) ** 2 * base) / before;
  }
  return weights;
}

// --- The microphone ----------------------------------------------------------------------------

async function openMicrophone() {
  if (!navigator.mediaDevices || !globalThis.MediaRecorder) {
    throw new AudioError("Microphones need https, or 127.0.0.1.");
  }
  return navigator.mediaDevices.getUserMedia({ audio: true }).catch((error) => {
    throw new AudioError(`The microphone cannot be used: ${error.message}.`);
  });
}

/**
 * Hears the microphone: calls back with its samples as they come. capture.js is beside this file.
 *
 *     const listener = model.listen();
 *     const stop = await hear(model.sampleRate, async (samples) => show(await listener.append(samples)));
 *
 * @param {number} rate - samples a second.
 * @param {(samples: Float32Array) => void} heard - is called with the next ones, from -1 to 1.
 * @returns {Promise<() => Promise<void>>} a function that ends it, after the last samples.
 * @throws {AudioError}
 */
export async function hear(rate, heard) {
  const stream = await openMicrophone();
  const context = new AudioContext();
  const close = () => {
    for (const track of stream.getTracks()) track.stop();
    return context.close();
  };
  try {
    await context.audioWorklet.addModule(new URL("./capture.js", import.meta.url));
    const capture = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
    const resampler = new Resampler(context.sampleRate, rate);
    const give = (samples) => samples.length && heard(samples);
    let ended;
    const last = new Promise((resolve) => (ended = resolve));
    capture.port.onmessage = ({ data }) => (data ? give(resampler.append(data)) : ended());
    context.createMediaStreamSource(stream).connect(capture);
    await context.resume();
    return async () => {
      capture.port.postMessage("stop");
      await last;
      give(resampler.finish());
      await close();
    };
  } catch (error) {
    await close();
    throw new AudioError(`The microphone cannot be heard: ${error.message}.`);
  }
}

/**
 * Records from the microphone.
 *
 * @returns {Promise<() => Promise<Blob>>} a function that ends the recording and returns it.
 * @throws {AudioError}
 */
export async function record() {
  const stream = await openMicrophone();
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
  recorder.start();
  return async () => {
    const ended = new Promise((resolve) => recorder.addEventListener("stop", resolve, { once: true }));
    if (recorder.state !== "inactive") recorder.stop();
    await ended;
    for (const track of stream.getTracks()) track.stop();
    return new Blob(parts, { type: recorder.mimeType });
  };
}
