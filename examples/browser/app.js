// One picture in, one answer out: the file resizes and normalises the picture, chooses its width, and classifies it.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import { metadata } from "./metadata.js";

const MODEL = "model.onnx";
const TOP = 5;
const EXIT = -2;
const page = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const pen = page.canvas.getContext("2d", { willReadFrequently: true });
const video = document.createElement("video");

ort.env.wasm.numThreads = 1; // more threads need headers that a plain server does not send
ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;

let net, about, running = false, waiting = false;

async function open() {
  const answer = await fetch(MODEL);
  if (!answer.ok) throw new Error(`${MODEL} is missing; export it with dsnet export RUN --raw --simple`);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  about = parsed(metadata(bytes)["dsnet.manifest"] ?? "{}");
  if (!about.raw || !about.outputs.logits || !about.inputs.includes("budget"))
    throw new Error(`${MODEL} is not a classifier with budgets; export one with dsnet export RUN --raw --simple`);
  net = await ort.InferenceSession.create(bytes);
  const widest = Math.max(...about.widths.map((row) => row.madds));
  const shares = about.routers[0].budgets.map((row) => row.madds / widest);
  page.budget.min = (Math.ceil(100 * Math.min(...shares)) / 100).toFixed(2);
  page.budget.max = Math.min(1, Math.ceil(100 * Math.max(...shares)) / 100).toFixed(2);
  page.budget.value = (Number(page.budget.min) + Number(page.budget.max)) / 2;
  page.budget.disabled = false;
  const count = about.widths.length === 1 ? "one width" : `${about.widths.length} widths`;
  page.about.textContent = `${about.model}: ${count}, ${about.num_classes} classes, ${about.sizes.at(-1)} pixels`;
  tellBudget();
  await net.run(feed()); // the first call takes longer than those that follow
  document.body.dataset.state = "ready";
  await run(); // of a picture that came early
}

// Python writes numbers that are not finite as no JSON allows.
function parsed(text) {
  return JSON.parse(text.replace(/([:,[]\s*)(NaN|-?Infinity)/g, "$1null"));
}

// The canvas shows the picture that the network is given, at its full size and on white.
function draw(source, width, height) {
  page.canvas.width = width;
  page.canvas.height = height;
  pen.fillStyle = "white";
  pen.fillRect(0, 0, width, height);
  pen.drawImage(source, 0, 0);
  page.canvas.hidden = false;
  page.hint.hidden = true;
  page.drop.classList.add("filled");
}

function picture() {
  const { width, height } = page.canvas;
  const { data } = pen.getImageData(0, 0, width, height);
  const pixels = new Uint8Array(3 * width * height);
  for (let from = 0, to = 0; from < data.length; from += 4, to += 3) {
    pixels[to] = data[from];
    pixels[to + 1] = data[from + 1];
    pixels[to + 2] = data[from + 2];
  }
  return new ort.Tensor("uint8", pixels, [height, width, 3]);
}

function feed() {
  const free = (count) => new ort.Tensor("int64", new BigInt64Array(count).fill(-1n), [count]);
  const inputs = { image: picture(), budget: new ort.Tensor("float32", [Number(page.budget.value)], [1]) };
  if (net.inputNames.includes("pin")) Object.assign(inputs, { max_width: free(1), pin: free(about.widths[0].path.length) });
  if (net.inputNames.includes("max_size")) inputs.max_size = free(1);
  return inputs;
}

// Runs the network, and once more if something changed meanwhile.
async function run() {
  if (document.body.dataset.state !== "ready" || page.canvas.hidden) return;
  waiting = true;
  if (running) return;
  running = true;
  try {
    while (waiting) {
      waiting = false;
      const inputs = feed(), begun = performance.now();
      const outputs = await net.run(inputs);
      show(outputs, performance.now() - begun);
    }
  } catch (error) {
    fail(error);
  } finally {
    running = false;
  }
}

function show({ logits, path, madds }, milliseconds) {
  const values = Array.from(logits.data), most = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - most)), sum = powers.reduce((a, b) => a + b);
  const order = [...powers.keys()].sort((a, b) => powers[b] - powers[a]).slice(0, TOP);
  const name = (label) => about.classes[label] ?? String(label);
  page.class.textContent = name(order[0]);
  page.classes.replaceChildren(...order.map((label) => {
    const row = document.createElement("li"), bar = document.createElement("i"), share = powers[label] / sum;
    const words = [name(label), `${(100 * share).toFixed(1)} %`].map((text) => Object.assign(document.createElement("span"), { textContent: text }));
    bar.style.setProperty("--share", share);
    row.append(words[0], bar, words[1]);
    return row;
  }));
  const taken = Array.from(path.data, Number), spent = Number(madds.data[0]);
  const widest = Math.max(...about.widths.map((row) => row.madds));
  page.width.textContent = taken[0] === EXIT ? "exit" : taken.join(", ");
  page.madds.textContent = `${(100 * spent / widest).toFixed(0)} %`;
  page.ms.textContent = milliseconds.toFixed(milliseconds < 10 ? 1 : 0);
  drawWidths(taken);
  Object.assign(document.body.dataset, { path: taken.join(","), madds: spent, label: order[0], runs: Number(document.body.dataset.runs ?? 0) + 1 });
}

// One row of bars for each choice of the network: a bar is a width, as high as its share of the channels.
function drawWidths(taken) {
  page.widths.replaceChildren(...taken.map((width, point) => {
    const row = document.createElement("div"), most = Math.max(...about.widths.map((one) => one.channels[point]));
    const bar = (label, share, on) => {
      const item = document.createElement("span");
      item.className = on ? "taken" : "";
      item.append(document.createElement("i"), label);
      item.firstChild.style.setProperty("--share", share);
      return item;
    };
    row.className = "choice";
    if (about.space.exit) row.append(bar("exit", 0, width === EXIT));
    for (const one of about.widths) row.append(bar(one.path[point], one.channels[point] / most, one.path[point] === width));
    return row;
  }));
}

function tellBudget() {
  page.asked.textContent = `${Math.round(100 * page.budget.value)} %`;
}

function fail(error) {
  page.error.textContent = error.message;
  page.error.hidden = false;
}

async function take(file) {
  stopCamera();
  page.error.hidden = true;
  try {
    const image = await createImageBitmap(file, { colorSpaceConversion: "none" });
    draw(image, image.width, image.height);
  } catch {
    return fail(new Error(`${file.name} cannot be read as a picture; choose another one`));
  }
  await run();
}

function stopCamera() {
  video.srcObject?.getTracks().forEach((track) => track.stop());
  video.srcObject = null;
  page.camera.classList.remove("on");
  page.camera.textContent = "Use the camera";
}

async function startCamera() {
  page.error.hidden = true;
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    return fail(new Error(`The camera cannot be used (${error.message})`));
  }
  video.muted = video.playsInline = true;
  await video.play();
  page.camera.classList.add("on");
  page.camera.textContent = "Stop the camera";
  while (video.srcObject) {
    if (video.videoWidth) draw(video, video.videoWidth, video.videoHeight);
    await run();
    await new Promise(requestAnimationFrame);
  }
}

page.file.addEventListener("change", () => page.file.files.length && take(page.file.files[0]));
page.camera.addEventListener("click", () => (video.srcObject ? stopCamera() : startCamera()));
page.budget.addEventListener("input", () => { tellBudget(); run(); });
for (const kind of ["dragover", "dragleave", "drop"])
  page.drop.addEventListener(kind, (event) => {
    event.preventDefault();
    page.drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });

open().catch((error) => {
  page.about.textContent = "There is no network.";
  fail(error);
});
