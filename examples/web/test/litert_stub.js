/**
 * LiteRT.js for tests in Node: a file has the signatures of `globalThis.signatures` and computes
 * nothing. Outputs of floats are 0; those of integers, ids of tokens, are 1. What LiteRT.js would
 * refuse is refused: inputs of other names or shapes, and writes outside of a tensor.
 */

const ARRAYS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };
const names = new Map(Object.entries(ARRAYS).map(([name, type]) => [type, name]));
let locked;

const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

export class Tensor {
  constructor(data, shape) {
    if (data.length !== product(shape)) throw new Error(`${data.length} values for ${shape}`);
    this.data = data.slice();
    this.type = { dtype: names.get(data.constructor), layout: { dimensions: [...shape] } };
    this.liteRtTensorBuffer = {
      lock: () => {
        locked = new Uint8Array(this.data.buffer);
        return 0;
      },
      unlock: () => (locked = undefined),
    };
  }

  toTypedArray() {
    if (!this.data) throw new Error("the tensor was deleted");
    return this.data.slice();
  }

  delete() {
    this.data = undefined;
  }
}

export const loadLiteRt = async () => {};

export const getGlobalLiteRt = () => ({
  liteRtWasm: {
    LiteRtTensorBufferLockMode: { WRITE: 1 },
    HEAPU8: { set: (bytes, at) => locked.set(bytes, at) },
  },
});

export async function loadAndCompile() {
  const details = (tensors) =>
    Object.entries(tensors).map(([name, { shape, dtype }]) => ({ name, shape, dtype }));
  const runner = ({ inputs, outputs }) => ({
    getInputDetails: () => details(inputs),
    getOutputDetails: () => details(outputs),
    run: async (given) => {
      const told = (name, dtype, shape) => `${name} ${dtype} ${shape}`;
      const found = Object.entries(given).map(([name, { data, type }]) => {
        if (!data) throw new Error(`${name} was deleted`);
        return told(name, type.dtype, type.layout.dimensions);
      });
      const wanted = details(inputs).map(({ name, dtype, shape }) => told(name, dtype, shape));
      if (String(found.sort()) !== String(wanted.sort())) {
        throw new Error(`expected the inputs ${wanted}, got ${found}`);
      }
      globalThis.given = Object.fromEntries(
        Object.entries(given).map(([name, { data }]) => [name, [...data]]),
      );
      const results = details(outputs).map(({ name, shape, dtype }) => {
        const data = new ARRAYS[dtype](product(shape)).fill(dtype === "float32" ? 0 : 1);
        return [name, new Tensor(data, shape)];
      });
      return Object.fromEntries(results);
    },
  });
  const entries = Object.entries(globalThis.signatures);
  return { signatures: Object.fromEntries(entries.map(([k, x]) => [k, runner(x)])), delete() {} };
}
