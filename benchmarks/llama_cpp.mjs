// llama.cpp for benchmarks/language_model.py, through node-llama-cpp's prebuilt libraries.
//
//     node llama_cpp.mjs FOLDER FILE.gguf CACHE_TYPE THREADS CAPACITY
//
// FOLDER has node_modules. Each line of standard input is a request, each line of output its answer,
// both in JSON: see language_model_contestants.py.

import fs from "node:fs";
import readline from "node:readline";
import {pathToFileURL} from "node:url";

const [folder, file, cacheType, threads, capacity] = process.argv.slice(2);
const {getLlama} = await import(
    pathToFileURL(`${folder}/node_modules/node-llama-cpp/dist/index.js`)
);
const llama = await getLlama({
    gpu: false, build: "never", maxThreads: Number(threads), logLevel: "error"
});
const before = kilobytes("VmRSS"), anonymous = kilobytes("RssAnon"), begin = performance.now();
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({
    contextSize: Number(capacity),
    batchSize: 512,
    threads: {ideal: Number(threads), min: Number(threads)},
    experimentalKvCacheKeyType: cacheType,
    experimentalKvCacheValueType: cacheType
});
const sequence = context.getSequence();
answer({loaded: seconds(begin), features: llama.systemInfo});
for await (const line of readline.createInterface({input: process.stdin})) {
    const request = JSON.parse(line);
    await sequence.clearHistory();
    if (request.prompt) answer(await generate(request.prompt, request.new));
    else if (request.row) answer({losses: await losses(request.row)});
    else {
        answer({
            memory: (kilobytes("VmHWM") - before) / 1000,
            anonymous: (kilobytes("RssAnon") + kilobytes("RssShmem") - anonymous) / 1000
        });
    }
}
process.exit(0);

async function generate(prompt, count) {
    const tokens = [], start = performance.now();
    let first = 0;
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        first ||= seconds(start);
        if (tokens.push(token) === count) break;
    }
    return {tokens, first, last: seconds(start)};
}

// The cross-entropy of each token after the first.
async function losses(row) {
    const inputs = row.slice(0, -1).map((token, i) => [
        token,
        {
            generateNext: {
                options: {temperature: 1, topK: 0, topP: 1, minP: 0},
                logits: {filter: {tokens: [row[i + 1]], includeTop: 1}},  // and the highest
                totalLogitWeight: true
            }
        }
    ]);
    const outputs = await sequence.controlledEvaluate(inputs);
    return outputs.map(({next}, i) => {
        const highest = Math.max(...next.logits.values());
        return Math.log(next.totalLogitWeight) + highest - next.logits.get(row[i + 1]);
    });
}

function answer(value) {
    process.stdout.write(JSON.stringify(value) + "\n");
}

function seconds(start) {
    return (performance.now() - start) / 1000;
}

function kilobytes(field) {
    const line = fs.readFileSync("/proc/self/status", "utf8").split("\n")
        .find((x) => x.startsWith(field));
    return Number(line.split(/\s+/)[1]);
}
