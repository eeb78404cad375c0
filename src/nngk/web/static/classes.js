// The view of the classes: their photos, and what can be done with them.

import { askInDialog, can, change, complain, known } from "./changes.js";
import { find, make, many, photo } from "./elements.js";
import * as server from "./server.js";
import { shots } from "./shots.js";

export function draw() {
  const wanted = find("filter").value.trim().toLowerCase();
  const shown = known.classes.filter((each) => each.name.toLowerCase().includes(wanted));
  find("new-class").hidden = !can("add");
  find("undo-last").hidden = !known.undo || !can("undo");
  find("no-classes").hidden = shown.length > 0;
  find("no-classes").textContent = known.classes.length ? "No class has such a name." : "The model knows no class yet.";
  find("class-list").replaceChildren(...shown.map(card));
}

function card({ name, images, photos }) {
  const button = (words, does, kind = "quiet") => make("button", { type: "button", class: kind, "aria-label": `${words} ${name}`, onclick: does }, words);
  return make("li", { class: "card" },
    make("div", { class: "row spread" }, make("h2", {}, name), make("span", { class: "images" }, many(images, "photo"))),
    make("div", { class: "strip" }, ...photos.slice(0, 8).map((id) => photo(id, `Photo of ${name}`))),
    make("div", { class: "row" },
      images > photos.length ? button("All photos", () => showAll(name)) : null,
      can("add") ? button("Add pictures", () => addTo(name)) : null,
      can("rename") ? button("Rename", () => rename(name)) : null,
      can("merge") && known.classes.length > 1 ? button("Merge", () => merge(name)) : null,
      can("remove") ? button("Remove", () => remove(name, images), "quiet bad") : null));
}

const text = (words, name, value = "") => make("label", { class: "field" }, make("span", {}, words),
  make("input", { type: "text", name, required: true, maxlength: 200, value, autocomplete: "off" }));

// The dialog closes first: the token may have to be asked for in its place.
const afterwards = (make_it) => setTimeout(() => change(make_it));

function needPictures(pictures) {
  if (!pictures.files.length) throw new Error("Add a picture first.");
}

export function newClass() {
  const pictures = shots();
  askInDialog("Teach a new class", [text("Its name", "name"), pictures.element], "Teach it", (data) => {
    needPictures(pictures);
    afterwards(() => server.teach(data.get("name"), pictures.files));
  });
}

function addTo(name) {
  const pictures = shots();
  askInDialog(`More pictures of ${name}`, [pictures.element], "Add them", () => {
    needPictures(pictures);
    afterwards(() => server.teach(name, pictures.files));
  });
}

function rename(name) {
  askInDialog(`Rename ${name}`, [text("New name", "name", name)], "Rename", (data) => afterwards(() => server.rename(name, data.get("name"))));
}

function merge(name) {
  const others = known.classes.filter((each) => each.name !== name);
  const choice = make("select", { name: "target", "aria-label": "It becomes a part of" }, ...others.map((each) => make("option", { value: each.name }, each.name)));
  askInDialog(`Merge ${name} into another class`, [make("label", { class: "field" }, make("span", {}, "It becomes a part of"), choice)], "Merge",
    (data) => afterwards(() => server.merge(name, data.get("target"))));
}

function remove(name, images) {
  askInDialog(`Remove ${name}?`, [make("p", {}, `The model forgets it and its ${many(images, "photo")}. This can be undone.`)], "Remove",
    () => afterwards(() => server.remove(name)), true);
}

async function showAll(name) {
  try {
    const { photos, total } = await server.allPhotos(name);
    const more = total > photos.length ? make("p", {}, `These are the newest ${photos.length} of ${total}.`) : null;
    const strip = make("div", { class: "strip" }, ...photos.map((id) => photo(id, `Photo of ${name}`)));
    const dialog = find("dialog");
    dialog.replaceChildren(make("h2", { id: "dialog-title" }, name), ...(more ? [more] : []), strip,
      make("div", { class: "row" }, make("button", { type: "button", onclick: () => dialog.close() }, "Close")));
    dialog.showModal();
  } catch (error) {
    complain(error);
  }
}
