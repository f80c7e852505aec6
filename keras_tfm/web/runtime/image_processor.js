/**
 * Pictures as the pixels that a model was trained on; keras_tfm/runtime/media/image_processor.py is the
 * same in Python. `model.js` imports it for files that read pictures.
 */

import { resized } from "./resampling.js";

const TILE = 2048; // browsers limit the size of a canvas, and phones most
const LARGEST = 2 ** 26; // pixels of a picture that is enlarged
const MOST = 89_478_485; // pixels of a picture, as Pillow's default: 270 MB in RGB

/** Something is not a picture, or not one that this browser can read; `message` says why. */
export class PictureError extends Error {
  name = "PictureError";
}

/**
 * The pixels of a picture for a model.
 *
 * Of opaque pictures with 8 bits a channel they are those of Python, bit by bit, as far as the
 * browser decodes the file as Pillow does: of PNG and other lossless formats it does.
 *
 * @param {object} processor - an entry of the manifest's "images".
 * @param {Blob | ImageBitmap | HTMLImageElement | HTMLVideoElement | HTMLCanvasElement |
 *   OffscreenCanvas | VideoFrame | ImageData} source
 * @returns {Promise<{pixels: Uint8Array, width: number, height: number}>} (H, W, C) of the
 *   processor's size, and the size of the picture.
 * @throws {PictureError}
 */
export async function pixelsOf(processor, source) {
  const picture = await opened(source, processor.channels, processor.background);
  return { pixels: prepared(processor, picture), width: picture.width, height: picture.height };
}

/**
 * A picture resized and cropped.
 *
 * @param {object} processor
 * @param {import("./resampling.js").Picture} picture - opaque, upright, of the right channels.
 * @returns {Uint8Array} (H, W, C), or of tiles and the whole picture (N, H, W, C)
 */
export function prepared(processor, picture) {
  if (processor.longest_edge !== undefined) return imagesOf(processor, picture);
  const [height, width] = processor.size;
  const { channels } = picture;
  const [newHeight, newWidth] = resizedSize(processor, picture.height, picture.width);
  if (newHeight * newWidth > Math.max(LARGEST, picture.width * picture.height)) {
    throw new PictureError(
      `The picture is too narrow: its ${picture.width} x ${picture.height} pixels would be ` +
        `resized to ${newWidth} x ${newHeight}; crop it first.`,
    );
  }
  const [top, left] = offset(processor, newHeight, newWidth);
  const bottom = Math.min(newHeight, top + height);
  let found = picture;
  if (newHeight !== picture.height || newWidth !== picture.width) {
    found = resized(picture, newWidth, newHeight, processor.resample, { top, bottom });
  }
  const result = new Uint8Array(height * width * channels).fill(processor.background);
  const count = Math.min(width, newWidth - left) * channels;
  for (let y = top; y < bottom; y++) {
    const from = (y * newWidth + left) * channels;
    result.set(found.data.subarray(from, from + count), (y - top) * width * channels);
  }
  return result;
}

// --- Tiles, as keras_tfm/runtime/media/tile_processor.py ---------------------------------------

export const IMAGE = "<image>"; // the place of a picture in a text

/**
 * The text of a picture, which stands in a prompt for `<image>`.
 *
 * @param {object} processor - with `longest_edge`.
 * @param {{width: number, height: number}} size - of the picture.
 * @param {number} features - of an image, each of which has a placeholder.
 */
export function placeOf(processor, { width, height }, features) {
  const [rows, columns] = tiling(processor, height, width).grid;
  const [around, image] = ["<fake_token_around_image>", IMAGE.repeat(features)];
  const whole = `${around}<global-img>${image}${around}`;
  if (!rows) return whole;
  let text = "";
  for (let i = 1; i <= rows; i++) {
    for (let j = 1; j <= columns; j++) text += `${around}<row_${i}_col_${j}>${image}`;
    text += "\n";
  }
  return `${text}\n${whole}`;
}

/** The sizes to which a picture is resized in turn, and its rows and columns of tiles. */
function tiling({ size: [side], longest_edge: longest, num_images: count }, height, width) {
  const even = (x) => Math.max(1, Math.trunc(x) + (Math.trunc(x) % 2));
  const multiple = (x) => Math.ceil(x / side) * side;
  let ratio = width / height;
  if (width >= height) [height, width] = [even(longest / ratio), longest];
  else [height, width] = [longest, even(longest * ratio)];
  const first = [height, width];
  if (count === null) return { sizes: [first, [side, side]], grid: [0, 0] };
  ratio = width / height;
  if (width >= height) {
    width = multiple(width);
    height = multiple(Math.trunc(width / ratio));
  } else {
    height = multiple(height);
    width = multiple(Math.trunc(height * ratio));
  }
  const grid = [height / side, width / side];
  return { sizes: [first, [height, width]], grid: Math.max(...grid) === 1 ? [0, 0] : grid };
}

/** The tiles of a picture, row by row, and the whole: (N, H, W, C). */
function imagesOf(processor, picture) {
  const { size: [side], resample, num_images: most } = processor;
  const { sizes, grid: [rows, columns] } = tiling(processor, picture.height, picture.width);
  const count = rows * columns + 1;
  if (count > (most ?? 1)) {
    throw new PictureError(`The model reads at most ${most} images of a picture, not ${count}.`);
  }
  const to = (found, [height, width]) =>
    found.height === height && found.width === width
      ? found
      : resized(found, width, height, resample, { top: 0, bottom: height });
  const cut = sizes.reduce(to, picture);
  const line = side * picture.channels;
  const result = new Uint8Array((most ?? 1) * side * line);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      for (let y = 0; y < side; y++) {
        const from = ((i * side + y) * cut.width + j * side) * picture.channels;
        const at = ((i * columns + j) * side + y) * line;
        result.set(cut.data.subarray(from, from + line), at);
      }
    }
  }
  result.set(to(cut, [side, side]).data, (count - 1) * side * line);
  return result;
}

/**
 * A box in a model's input as a box in the original picture, clipped to it.
 *
 * @param {object} processor
 * @param {Iterable<number>} box - x and y of the centre, width and height, as fractions of the input.
 * @param {{width: number, height: number}} size - of the picture.
 * @returns {number[]} left, top, right and bottom in pixels of the picture.
 */
export function toPicture(processor, [x, y, w, h], { width, height }) {
  const [newHeight, newWidth] = resizedSize(processor, height, width);
  const [top, left] = offset(processor, newHeight, newWidth);
  const edge = (at, size, shift, newSize, whole) =>
    Math.min(whole, Math.max(0, ((at * size + shift) * whole) / newSize));
  const across = (at) => edge(at, processor.size[1], left, newWidth, width);
  const down = (at) => edge(at, processor.size[0], top, newHeight, height);
  return [across(x - w / 2), down(y - h / 2), across(x + w / 2), down(y + h / 2)];
}

/** Height and width to which a picture is resized. */
function resizedSize({ size, resize }, height, width) {
  if (resize === null) return size;
  if (resize === "fit") {
    const ratio = Math.min(size[0] / height, size[1] / width);
    return [height, width].map((length) => Math.max(1, halfToEven(length * ratio)));
  }
  if (Array.isArray(resize)) return resize;
  const [short, long] = [Math.min(height, width), Math.max(height, width)];
  const other = Math.trunc((resize * long) / short);
  return height <= width ? [resize, other] : [other, resize];
}

/** Rounds as Python does. */
function halfToEven(x) {
  const rounded = Math.round(x);
  return rounded - x === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}

/** Top and left of the crop in the resized picture. */
function offset({ size, resize }, height, width) {
  if (resize === "fit") return [0, 0];
  return [Math.floor((height - size[0]) / 2), Math.floor((width - size[1]) / 2)];
}

// --- Sources -----------------------------------------------------------------------------------

/** A picture without transparency, as the browser decodes it, turned as its EXIF data say. */
async function opened(source, channels, background) {
  if (is("ImageData", source)) {
    const picture = blank(source.width, source.height, channels);
    copy(source, picture, 0, 0, background);
    return picture;
  }
  const drawn = await drawable(source);
  try {
    const { width, height } = sizeOf(drawn);
    if (!width || !height) throw new PictureError("The picture has no pixels, or none yet.");
    if (width * height > MOST) {
      throw new PictureError(
        `The picture is too large: it has ${width} x ${height} pixels, more than ${MOST}.`,
      );
    }
    const picture = blank(width, height, channels);
    const canvas = newCanvas(Math.min(width, TILE), Math.min(height, TILE));
    const context = canvas.getContext("2d", { willReadFrequently: true, colorSpace: "srgb" });
    for (let top = 0; top < height; top += TILE) {
      for (let left = 0; left < width; left += TILE) {
        const [w, h] = [Math.min(TILE, width - left), Math.min(TILE, height - top)];
        context.clearRect(0, 0, w, h);
        context.drawImage(drawn, left, top, w, h, 0, 0, w, h);
        copy(read(context, w, h), picture, left, top, background);
      }
    }
    return picture;
  } finally {
    if (drawn !== source) drawn.close();
  }
}

/** What a canvas can draw: files decoded, elements of a page as they are. */
export async function drawable(source) {
  try {
    if (is("Blob", source)) {
      // Pillow ignores colour profiles, too.
      return await createImageBitmap(source, { colorSpaceConversion: "none" });
    }
    if (is("HTMLImageElement", source)) {
      await source.decode();
      return await createImageBitmap(source, { colorSpaceConversion: "none" });
    }
  } catch {
    const name = source.name ?? source.currentSrc?.split("/").pop() ?? "";
    throw new PictureError(
      `${name || "The file"} is not a picture that this browser can read, or it is damaged.`,
    );
  }
  const kinds = ["ImageBitmap", "HTMLVideoElement", "HTMLCanvasElement", "OffscreenCanvas", "VideoFrame"];
  if (kinds.some((kind) => is(kind, source))) return source;
  throw new PictureError(
    "A picture must be a File or Blob, an ImageBitmap, an image, a video, a canvas or ImageData.",
  );
}

function is(kind, source) {
  return typeof globalThis[kind] === "function" && source instanceof globalThis[kind];
}

function sizeOf(drawn) {
  return {
    width: drawn.videoWidth ?? drawn.displayWidth ?? drawn.width,
    height: drawn.videoHeight ?? drawn.displayHeight ?? drawn.height,
  };
}

function newCanvas(width, height) {
  if (globalThis.OffscreenCanvas) return new OffscreenCanvas(width, height);
  return Object.assign(document.createElement("canvas"), { width, height });
}

function read(context, width, height) {
  try {
    return context.getImageData(0, 0, width, height);
  } catch {
    throw new PictureError("The picture is from another server, whose pixels a page may not read.");
  }
}

function blank(width, height, channels) {
  return { width, height, channels, data: new Uint8Array(width * height * channels) };
}

/** Copies RGBA pixels over the background into a part of a picture. */
function copy({ width, height, data }, picture, left, top, background) {
  const { channels, data: result } = picture;
  for (let y = 0; y < height; y++) {
    let to = ((top + y) * picture.width + left) * channels;
    for (let from = y * width * 4, end = from + width * 4; from < end; from += 4) {
      const alpha = data[from + 3];
      let [red, green, blue] = [data[from], data[from + 1], data[from + 2]];
      if (alpha !== 255) {
        [red, green, blue] = [red, green, blue].map((x) => over(x, alpha, background));
      }
      if (channels === 3) {
        result[to++] = red;
        result[to++] = green;
        result[to++] = blue;
      } else {
        result[to++] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16; // Rec. 601
      }
    }
  }
}

/** A value in front of the background, in integers as Pillow's `alpha_composite`. */
function over(value, alpha, background) {
  const sum = (value * alpha + background * (255 - alpha)) * 128 + (128 << 7);
  return ((sum >> 8) + sum) >> 15;
}
