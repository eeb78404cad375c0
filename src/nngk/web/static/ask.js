// The view that asks: a picture in, an answer with its reasons out, and what to do if it is wrong.

import { can, change, complain, known } from "./changes.js";
import { find, make, percent, photo } from "./elements.js";
import * as server from "./server.js";
import { shots } from "./shots.js";

let asked = null; // the picture on the page
let turn = 0; // only the answer to the latest picture is shown

export async function ask(file) {
  asked = file;
  const mine = ++turn;
  const image = find("asked");
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(file);
  document.body.classList.add("asking");
  find("answer").hidden = false;
  find("answer").classList.add("busy");
  find("panel").replaceChildren();
  try {
    const answer = await server.classify(file);
    if (mine === turn) show(answer);
  } catch (error) {
    if (mine === turn) refuse(error);
  }
  if (mine === turn) find("answer").classList.remove("busy");
}

export const again = () => (asked ? ask(asked) : null);

function refuse(error) {
  find("verdict").replaceChildren(make("div", { class: "unknown" }, make("h2", {}, "No answer"), make("p", {}, error.message)));
  for (const id of ["bars", "evidence", "next"]) find(id).replaceChildren();
  for (const id of ["bars-title", "evidence-title"]) find(id).hidden = true;
  if (error.status === 422 && !known.classes.length) actions(true);
}

function show(answer) {
  find("verdict").replaceChildren(answer.is_unknown
    ? make("div", { class: "unknown" }, make("h2", {}, "Unknown"),
      make("p", {}, `This is unlike everything that the model knows. Nearest is ${answer.label}.`))
    : make("div", { class: "verdict" }, make("h2", {}, answer.label), make("span", { class: "sure" }, `${percent(answer.probability)} sure`)));
  find("bars-title").hidden = find("evidence-title").hidden = false;
  find("bars-title").textContent = answer.is_unknown ? "If it had to be a known class" : "Classes";
  find("evidence-title").textContent = answer.decided_by === "kernels" && !answer.is_unknown ? "Decided by these photos, each with its share" : "The nearest photos";
  find("bars").replaceChildren(...answer.probabilities.map(bar));
  find("evidence").replaceChildren(...answer.evidence.map((each) => make("li", {},
    photo(each.id, `Photo of ${each.label}`), make("span", { class: "name", title: each.name }, each.label), percent(each.share))));
  actions(answer.is_unknown);
}

function bar({ label, probability }) {
  const fill = make("div", { class: "fill" });
  fill.style.width = `${100 * probability}%`;
  return make("li", {}, make("span", { class: "name", title: label }, label),
    make("div", { class: "track", "aria-hidden": "true" }, fill), make("span", { class: "number" }, percent(probability)));
}

function actions(unknown) {
  if (!can("add")) {
    find("next").replaceChildren();
    return;
  }
  const wrong = make("button", { type: "button", onclick: correct }, "This is wrong: it is …");
  const isNew = make("button", { type: "button", class: unknown ? "primary" : "", onclick: teach }, "This is new: teach it");
  find("next").replaceChildren(...(unknown ? [isNew, wrong] : [wrong, isNew]));
}

function correct() {
  const choice = make("select", { name: "name", required: true, "aria-label": "It is" }, make("option", { value: "" }, "Choose a class"),
    ...known.classes.map((each) => make("option", { value: each.name }, each.name)));
  open("What is it?", [make("label", { class: "field" }, make("span", {}, "It is"), choice)], "Correct it", choice,
    () => server.teach(choice.value, [asked]));
}

function teach() {
  const name = make("input", { type: "text", name: "name", required: true, maxlength: 200, autocomplete: "off" });
  const pictures = shots([asked]);
  open("Teach a new class", [make("label", { class: "field" }, make("span", {}, "Its name"), name), pictures.element], "Teach it", name, () => {
    if (!pictures.files.length) throw new Error("Add a picture first.");
    return server.teach(name.value, pictures.files);
  });
}

function open(title, fields, action, first, make_it) {
  const go = make("button", { type: "submit", class: "primary" }, action);
  const form = make("form", { class: "panel", "aria-label": title }, ...fields,
    make("div", { class: "row" }, go, make("button", { type: "button", onclick: () => find("panel").replaceChildren() }, "Cancel")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    if (await change(async () => make_it())) find("verdict").focus();
    go.disabled = false;
  });
  find("panel").replaceChildren(form);
  first.focus();
}

function takeFirst(files) {
  const picture = [...files].find((file) => file.type.startsWith("image/"));
  if (picture) ask(picture);
  else if (files.length) complain(new Error("that is not a picture."));
}

export function listen() {
  const drop = find("drop");
  for (const id of ["choose", "camera"]) {
    find(id).addEventListener("change", (event) => {
      takeFirst(event.target.files);
      event.target.value = "";
    });
  }
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => event.relatedTarget || drop.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (find("dialog").open) return;
    location.hash = "#ask";
    takeFirst(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length && !find("dialog").open) takeFirst(event.clipboardData.files);
  });
}
