// The map: every image of the model on a plane, drawn on a canvas, moved by mouse, touch and keys.

import { complain } from "./changes.js";
import { find, make, many, photo } from "./elements.js";
import * as server from "./server.js";

const THUMBNAILS = 60; // as many images or fewer in sight are shown as photos
const SIZE = 56;
const NAMED = 30; // as many classes or fewer have their names on the map
const canvas = find("map-canvas");
const paint = canvas.getContext("2d");
const seen = { scale: 1, x: 0.5, y: 0.5 }; // what is in the middle, and how much larger than all
let drawn = null; // the map
let at = { x: [], y: [], labels: [] }; // of each image, from 0 to 1, in arrays that are fast to walk
let sheet = null; // the pixels that are drawn into
let chosen = null;
let waiting = false;
const pictures = new Map(); // place → image, once it was asked for

export function forgetMap() {
  drawn = null;
}

let opening = null; // several may ask for the map while it comes

export function openMap() {
  if (drawn) ask();
  else opening ??= read().finally(() => { opening = null; });
  return opening ?? Promise.resolve();
}

async function read() {
  find("map-words").textContent = "Drawing the map …";
  drawn = await server.map();
  chosen = null;
  pictures.clear();
  const along = (values) => Float32Array.from(values, (value) => value / drawn.side);
  at = { x: along(drawn.x), y: along(drawn.y), labels: Uint32Array.from(drawn.labels) };
  const counts = drawn.names.map(() => 0);
  for (const label of at.labels) counts[label] += 1;
  const every = make("option", { value: "" }, "All classes");
  find("map-class").replaceChildren(every, ...drawn.names.map((name, label) => make("option", { value: label }, `${name} (${counts[label]})`)));
  find("map-near").replaceChildren();
  find("map-words").textContent = `${many(drawn.labels.length, "image")} of ${drawn.names.length === 1 ? "one class" : `${drawn.names.length} classes`}.`;
  whole();
}

const colour = (label, dark) => `hsl(${(label * 137.508) % 360} ${dark ? "65% 65%" : "60% 42%"})`;

// Where an image is on the canvas, in its pixels.
function place(index, width, height) {
  const side = 0.92 * Math.min(width, height) * seen.scale;
  return [width / 2 + (at.x[index] - seen.x) * side, height / 2 + (at.y[index] - seen.y) * side];
}

// Draw at the next frame, once, however often it is asked for.
export function ask() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function draw() {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!drawn || !width) return;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const inSight = points(ratio, dark);
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (inSight.length <= THUMBNAILS) photos(inSight, width, height, dark);
  if (drawn.names.length <= NAMED) names(width, height, dark);
  if (chosen !== null) ring(...place(chosen, width, height), dark);
}

// Write the points into the pixels themselves, which is many times faster than drawing 50,000 squares.
function points(ratio, dark) {
  const [wide, high] = [canvas.width, canvas.height];
  if (sheet?.width !== wide || sheet.height !== high) sheet = paint.createImageData(wide, high);
  const pixels = new Uint32Array(sheet.data.buffer);
  pixels.fill(0);
  const only = find("map-class").value;
  const inSight = [];
  if (only === "") dots(pixels, ratio, drawn.names.map((_, label) => pixel(label, dark, 217)), inSight);
  else { // the others first, faintly
    dots(pixels, ratio, drawn.names.map((_, label) => (label === Number(only) ? 0 : pixel(label, dark, 24))), []);
    dots(pixels, ratio, drawn.names.map((_, label) => (label === Number(only) ? pixel(label, dark, 217) : 0)), inSight);
  }
  paint.setTransform(1, 0, 0, 1, 0, 0);
  paint.putImageData(sheet, 0, 0);
  return inSight;
}

// Dot the images of every class whose colour is not 0, and note the first of those in sight.
function dots(pixels, ratio, colours, inSight) {
  const [wide, high] = [sheet.width, sheet.height];
  const size = Math.round(ratio * Math.max(2, Math.min(7, 2 * Math.sqrt(seen.scale)) * (at.labels.length < 300 ? 2.4 : at.labels.length < 2000 ? 1.8 : 1)));
  const side = 0.92 * Math.min(wide, high) * seen.scale;
  const [left, top] = [wide / 2 - seen.x * side - size / 2 + 0.5, high / 2 - seen.y * side - size / 2 + 0.5];
  const margin = SIZE * ratio;
  const { x: xs, y: ys, labels } = at;
  for (let index = 0; index < labels.length; index += 1) {
    const x = Math.floor(left + xs[index] * side);
    const y = Math.floor(top + ys[index] * side);
    if (x < -margin || y < -margin || x > wide + margin || y > high + margin) continue;
    const value = colours[labels[index]];
    if (value === 0) continue;
    if (inSight.length <= THUMBNAILS) inSight.push(index);
    const [from, to, end] = [x < 0 ? 0 : x, Math.min(wide, x + size), Math.min(high, y + size)];
    for (let row = y < 0 ? 0 : y; row < end; row += 1) {
      for (let column = from; column < to; column += 1) pixels[row * wide + column] = value;
    }
  }
}

// A class's colour as the four bytes of a pixel.
function pixel(label, dark, alpha) {
  const [saturation, light] = dark ? [0.65, 0.65] : [0.6, 0.42];
  const hue = ((label * 137.508) % 360) / 30;
  const reach = saturation * Math.min(light, 1 - light);
  const channel = (shift) => {
    const turn = (shift + hue) % 12;
    return Math.round(255 * (light - reach * Math.max(-1, Math.min(turn - 3, 9 - turn, 1))));
  };
  return ((alpha << 24) | (channel(4) << 16) | (channel(8) << 8) | channel(0)) >>> 0;
}

function ring(x, y, dark) {
  paint.strokeStyle = dark ? "#fff" : "#000";
  paint.lineWidth = 2;
  paint.beginPath();
  paint.arc(x, y, 9, 0, 2 * Math.PI);
  paint.stroke();
}

// Write the name of each class above its images, each where no other name is.
function names(width, height, dark) {
  const only = find("map-class").value;
  const all = drawn.names.map(() => ({ x: 0, y: Infinity, count: 0 }));
  at.labels.forEach((label, index) => {
    const one = all[label];
    one.x += at.x[index];
    one.y = Math.min(one.y, at.y[index]);
    one.count += 1;
  });
  const side = 0.92 * Math.min(width, height) * seen.scale;
  Object.assign(paint, { font: "600 14px system-ui, sans-serif", textAlign: "center", lineWidth: 4, lineJoin: "round" });
  const written = [];
  all.forEach(({ x, y, count }, label) => {
    if (!count || (only !== "" && Number(only) !== label)) return;
    let [left, top] = [width / 2 + (x / count - seen.x) * side, height / 2 + (y - seen.y) * side - 8];
    if (left < 0 || left > width || top < -8 || top > height) return;
    const half = paint.measureText(drawn.names[label]).width / 2 + 3;
    left = Math.max(half, Math.min(width - half, left));
    top = Math.max(16, top);
    while (written.some((other) => Math.abs(other.left - left) < other.half + half && Math.abs(other.top - top) < 16)) top -= 16;
    written.push({ left, top, half });
    paint.strokeStyle = dark ? "#1c2220" : "#ffffff";
    paint.strokeText(drawn.names[label], left, top);
    paint.fillStyle = dark ? "#e9eeeb" : "#1d2421";
    paint.fillText(drawn.names[label], left, top);
  });
}

function photos(places, width, height, dark) {
  const missing = places.filter((index) => !pictures.has(index));
  if (missing.length) load(missing);
  for (const index of places) {
    const image = pictures.get(index);
    if (!image?.complete || !image.naturalWidth) continue;
    const [x, y] = place(index, width, height);
    const shorter = Math.min(image.naturalWidth, image.naturalHeight);
    paint.drawImage(image, (image.naturalWidth - shorter) / 2, (image.naturalHeight - shorter) / 2, shorter, shorter, x - SIZE / 2, y - SIZE / 2, SIZE, SIZE);
    paint.strokeStyle = colour(drawn.labels[index], dark);
    paint.lineWidth = 3;
    paint.strokeRect(x - SIZE / 2, y - SIZE / 2, SIZE, SIZE);
  }
}

async function load(places) {
  const { version } = drawn;
  for (const index of places) pictures.set(index, null);
  try {
    const found = await server.mapPhotos(version, places);
    if (drawn?.version !== version) return;
    found.photos.forEach((id, count) => {
      const image = new Image();
      image.onload = ask;
      image.src = `/photos/${id}`;
      pictures.set(places[count], image);
    });
  } catch (error) {
    stale(error);
  }
}

function stale(error) {
  if (error.status !== 409) return complain(error);
  drawn = null;
  return openMap().catch(complain);
}

function whole() {
  Object.assign(seen, { scale: 1, x: 0.5, y: 0.5 });
  ask();
}

function move(dx, dy) {
  const side = 0.92 * Math.min(canvas.clientWidth, canvas.clientHeight) * seen.scale;
  seen.x = Math.min(1, Math.max(0, seen.x - dx / side));
  seen.y = Math.min(1, Math.max(0, seen.y - dy / side));
  ask();
}

// Zoom so that what is at a point of the canvas stays there.
function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const before = seen.scale;
  seen.scale = Math.min(400, Math.max(1, before * factor));
  const side = 0.92 * Math.min(canvas.clientWidth, canvas.clientHeight);
  const [dx, dy] = [x - canvas.clientWidth / 2, y - canvas.clientHeight / 2];
  seen.x = Math.min(1, Math.max(0, seen.x + dx / side * (1 / before - 1 / seen.scale)));
  seen.y = Math.min(1, Math.max(0, seen.y + dy / side * (1 / before - 1 / seen.scale)));
  ask();
}

function nearestTo(x, y, reach) {
  let best = null;
  let least = reach * reach;
  for (let index = 0; index < drawn.labels.length; index += 1) {
    const [px, py] = place(index, canvas.clientWidth, canvas.clientHeight);
    const squared = (px - x) ** 2 + (py - y) ** 2;
    if (squared < least) [best, least] = [index, squared];
  }
  return best;
}

export async function choose(index) {
  if (index === null || !drawn) return;
  chosen = index;
  ask();
  try {
    const { image, near } = await server.near(drawn.version, index);
    if (chosen === index) show(image, near);
  } catch (error) {
    stale(error);
  }
}

// Show an image in the middle of the map, with its neighbours.
export async function goTo(index) {
  location.hash = "#map";
  await openMap();
  if (index >= drawn.labels.length) return;
  Object.assign(seen, { scale: Math.max(8, seen.scale), x: at.x[index], y: at.y[index] });
  await choose(index);
  find("map-near").focus();
}

function show(image, near) {
  const one = (each) => make("li", {}, make("button", { type: "button", "aria-label": `Neighbours of ${each.name}, ${each.label}`, onclick: () => goTo(each.place) },
    photo(each.id, `Photo of ${each.label}`), make("span", { class: "name", title: each.name }, each.label)), each === image ? null : each.distance.toFixed(3));
  find("map-near").replaceChildren(make("h2", {}, image.label), make("ul", { class: "photos" }, one(image)),
    make("h3", { class: "small" }, "Its neighbours, with their distances"), make("ul", { class: "photos" }, ...near.map(one)));
}

// Choose an image by keyboard: it comes to the middle, so that it is in sight.
function middle(index) {
  Object.assign(seen, { x: at.x[index], y: at.y[index] });
  return choose(index);
}

const pointers = new Map();
let moved = 0;

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
  if (pointers.size === 1) moved = 0;
});
canvas.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const now = [event.offsetX, event.offsetY];
  if (pointers.size === 2) {
    const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, where]) => where);
    const apart = ([x, y]) => Math.max(10, Math.hypot(x - other[0], y - other[1]));
    zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    moved += 10;
  } else {
    move(now[0] - before[0], now[1] - before[1]);
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
  }
  pointers.set(event.pointerId, now);
});
canvas.addEventListener("pointerup", (event) => {
  pointers.delete(event.pointerId);
  if (moved < 5 && drawn) choose(nearestTo(event.offsetX, event.offsetY, 30));
});
canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const does = {
    ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60),
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), Home: whole,
    Enter: () => drawn && middle(nearestTo(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity)),
  }[event.key];
  if (!does || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  does();
});
find("map-in").addEventListener("click", () => zoom(1.5));
find("map-out").addEventListener("click", () => zoom(1 / 1.5));
find("map-all").addEventListener("click", whole);
find("map-class").addEventListener("change", ask);
addEventListener("resize", ask);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ask);
