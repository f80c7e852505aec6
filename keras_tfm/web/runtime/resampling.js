/**
 * Resizes pictures as `Image.resize` of Pillow 13 does, bit by bit: filters that widen when a picture
 * is reduced, in integers of 22 bits after the point, along rows and along columns in turn, with 8
 * bits between the two passes. The columns come first where their length shrinks most.
 *
 *     import { resized } from "./resampling.js";
 *
 *     const small = resized({ width, height, channels: 3, data }, 224, 224, "bilinear");
 */

/** 8 bits of the value and 2 of overshoot leave 22 of 32 for fractions. */
const PRECISION = 32 - 8 - 2;

// Each filter: how far it reaches in pixels, and its value at a distance.
const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, cubic],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

function cubic(distance) {
  const a = -0.5;
  const x = Math.abs(distance);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);
}

/**
 * @typedef {object} Picture - pixels of 8 bits.
 * @property {number} width
 * @property {number} height
 * @property {number} channels
 * @property {Uint8Array | Uint8ClampedArray} data - row by row, the channels of a pixel together.
 */

/**
 * @param {Picture} picture
 * @param {number} width - of the result.
 * @param {number} height - of the result.
 * @param {"nearest" | "bilinear" | "bicubic" | "lanczos"} filter
 * @param {{top: number, bottom: number}} [rows] - the rows of the result that are needed; the
 *   others are left black.
 * @returns {Picture}
 */
export function resized(picture, width, height, filter, rows = { top: 0, bottom: height }) {
  if (filter === "nearest") return nearest(picture, width, height);
  let { data } = picture;
  const { channels } = picture;
  const shrinks = picture.height - height;
  const columnsFirst = shrinks > 0 && shrinks > 2 * (picture.width - width);
  const down = height === picture.height ? null : weights(picture.height, height, filter);
  const across = width === picture.width ? null : weights(picture.width, width, filter);
  if (down && columnsFirst) {
    data = alongColumns(data, picture.width * channels, height, down, rows);
  }
  if (across) {
    let { top, bottom } = rows;
    if (down && !columnsFirst) {
      // The rows that the second pass reads.
      top = down.starts[rows.top];
      bottom = down.starts[rows.bottom - 1] + down.counts[rows.bottom - 1];
    }
    const size = { ...picture, height: columnsFirst ? height : picture.height };
    data = alongRows(size, data, width, across, top, bottom);
  }
  if (down && !columnsFirst) data = alongColumns(data, width * channels, height, down, rows);
  return { width, height, channels, data };
}

/** Of each new pixel the first old one, how many there are, and their weights as integers. */
function weights(size, newSize, filter) {
  const [reach, valueAt] = FILTERS[filter];
  const scale = size / newSize;
  const widened = Math.max(scale, 1);
  const support = reach * widened;
  const width = Math.ceil(support) * 2 + 1;
  const [starts, counts] = [new Int32Array(newSize), new Int32Array(newSize)];
  const values = new Int32Array(newSize * width);
  const row = new Float64Array(width);
  for (let i = 0; i < newSize; i++) {
    const center = (i + 0.5) * scale;
    const start = Math.max(0, Math.trunc(center - support + 0.5));
    const count = Math.min(size, Math.trunc(center + support + 0.5)) - start;
    let sum = 0;
    for (let j = 0; j < count; j++) {
      row[j] = valueAt((j + start - center + 0.5) * (1 / widened));
      sum += row[j];
    }
    for (let j = 0; j < count; j++) {
      const weight = (sum === 0 ? row[j] : row[j] / sum) * 2 ** PRECISION;
      values[i * width + j] = Math.trunc(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    starts[i] = start;
    counts[i] = count;
  }
  return { starts, counts, values, width };
}

const HALF = 1 << (PRECISION - 1);

function clipped(sum) {
  const value = sum >> PRECISION;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

function alongRows({ width, height, channels }, data, newWidth, { starts, counts, values, width: n }, first, last) {
  const result = new Uint8Array(height * newWidth * channels);
  for (let y = first; y < last; y++) {
    const row = y * width * channels;
    let to = y * newWidth * channels;
    for (let x = 0; x < newWidth; x++) {
      const from = row + starts[x] * channels;
      const count = counts[x];
      if (channels === 3) {
        let [red, green, blue] = [HALF, HALF, HALF];
        for (let j = 0, at = from; j < count; j++, at += 3) {
          const weight = values[x * n + j];
          red += data[at] * weight;
          green += data[at + 1] * weight;
          blue += data[at + 2] * weight;
        }
        result[to++] = clipped(red);
        result[to++] = clipped(green);
        result[to++] = clipped(blue);
        continue;
      }
      for (let c = 0; c < channels; c++) {
        let sum = HALF;
        for (let j = 0; j < count; j++) sum += data[from + j * channels + c] * values[x * n + j];
        result[to++] = clipped(sum);
      }
    }
  }
  return result;
}

function alongColumns(data, stride, newHeight, { starts, counts, values, width: n }, { top, bottom }) {
  const result = new Uint8Array(newHeight * stride);
  const sums = new Int32Array(stride);
  for (let y = top; y < bottom; y++) {
    sums.fill(HALF);
    for (let j = 0; j < counts[y]; j++) {
      const weight = values[y * n + j];
      const from = (starts[y] + j) * stride;
      for (let i = 0; i < stride; i++) sums[i] += data[from + i] * weight;
    }
    for (let i = 0; i < stride; i++) result[y * stride + i] = clipped(sums[i]);
  }
  return result;
}

/** The old pixel below the centre of each new one; added up, as Pillow does. */
function nearest({ width, height, channels, data }, newWidth, newHeight) {
  const places = (size, newSize) => {
    const step = size / newSize;
    const found = new Int32Array(newSize);
    for (let i = 0, at = step * 0.5; i < newSize; i++, at += step) {
      found[i] = at < size ? Math.trunc(at) : -1;
    }
    return found;
  };
  const [columns, rows] = [places(width, newWidth), places(height, newHeight)];
  const result = new Uint8Array(newWidth * newHeight * channels);
  let to = 0;
  for (const row of rows) {
    for (const column of columns) {
      const from = (row * width + column) * channels;
      for (let c = 0; c < channels; c++) {
        result[to++] = row < 0 || column < 0 ? 0 : data[from + c];
      }
    }
  }
  return { width: newWidth, height: newHeight, channels, data: result };
}
