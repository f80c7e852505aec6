/** The part of `hear` in audio.js that runs beside the page's code: an AudioWorklet posts the samples. */

const BLOCK = 1024; // samples of a message

registerProcessor(
  "capture",
  class extends AudioWorkletProcessor {
    #block = new Float32Array(BLOCK);
    #count = 0;
    #ended = false;

    constructor() {
      super();
      this.port.onmessage = () => {
        this.#ended = true;
        this.port.postMessage(this.#block.slice(0, this.#count));
        this.port.postMessage(null); // the last message
      };
    }

    /** The average of the channels. */
    process([channels]) {
      if (this.#ended) return false;
      for (let i = 0; i < (channels[0]?.length ?? 0); i++) {
        let sum = 0;
        for (const channel of channels) sum += channel[i];
        this.#block[this.#count++] = sum / channels.length;
        if (this.#count < BLOCK) continue;
        this.port.postMessage(this.#block.slice());
        this.#count = 0;
      }
      return true;
    }
  },
);
