// Several pictures that are about to be shown to the model.

import { make, many } from "./elements.js";

export function shots(first = []) {
  const files = [...first];
  const list = make("ul", { class: "photos shots", "aria-label": "Pictures to show" });
  const input = make("input", { type: "file", accept: "image/*", multiple: true, class: "over", "data-more": true });
  const more = make("label", { class: "button" }, input, "Add pictures");
  const words = make("p", { role: "status" });

  function draw() {
    list.replaceChildren(...files.map((file, place) => {
      const image = make("img", { alt: `Picture ${place + 1}` });
      image.src = URL.createObjectURL(file);
      image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
      const leave = make("button", { type: "button", "aria-label": `Leave out picture ${place + 1}`, onclick: () => {
        files.splice(place, 1);
        draw();
        input.focus();
      } }, "Leave out");
      return make("li", {}, make("span", { class: "photo" }, image), leave);
    }));
    words.textContent = files.length ? `${many(files.length, "picture")}. Three or more make a good start.` : "No pictures yet. Three or more make a good start.";
  }

  input.addEventListener("change", () => {
    files.push(...input.files);
    input.value = "";
    draw();
  });
  draw();
  return { files, element: make("div", {}, list, words, make("p", {}, more)) };
}
