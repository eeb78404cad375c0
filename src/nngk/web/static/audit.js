// The audit: what is doubtful about the model's images, to click through.

import { find, make, many, photo } from "./elements.js";
import { goTo } from "./map.js";
import * as server from "./server.js";

const KINDS = { label: "Labels that are probably wrong", duplicate: "Near duplicates", confused: "Classes that are confused", useless: "Images that serve nothing" };
let doubts = null;

export function forgetAudit() {
  doubts = null;
}

export async function openAudit() {
  if (doubts) return;
  find("audit-words").textContent = "Judging each image by the others …";
  ({ doubts } = await server.audit());
  const kinds = Object.entries(KINDS).map(([kind, words]) => [kind, `${words} (${doubts.filter((each) => each.kind === kind).length})`]);
  find("audit-kind").replaceChildren(...kinds.map(([kind, words]) => make("option", { value: kind }, words)));
  find("audit-kind").value = doubts.length ? doubts[0].kind : "label";
  draw();
}

function draw() {
  const kind = find("audit-kind").value;
  const shown = doubts.filter((each) => each.kind === kind);
  find("audit-words").textContent = shown.length ? `${many(shown.length, "finding")}, the worst first.` : "Nothing of this kind was found.";
  find("audit-list").replaceChildren(...shown.map(card));
}

function card({ said, places, photos }, number) {
  return make("li", { class: "card" },
    make("h2", {}, said),
    photos.length ? make("div", { class: "pair" }, ...photos.map((id, place) => photo(id, `Image ${place + 1} of finding ${number + 1}`))) : null,
    make("div", { class: "row" }, ...places.map((place, count) => make("button", { type: "button", onclick: () => goTo(place) },
      places.length > 1 ? `Show ${count ? "the second" : "the first"} on the map` : "Show on the map"))));
}

find("audit-kind").addEventListener("change", draw);
