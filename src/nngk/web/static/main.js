// The page: four views, one model.

import { again, listen } from "./ask.js";
import { forgetAudit, openAudit } from "./audit.js";
import { complain, known, quiet, refresh, undo, whenChanged } from "./changes.js";
import { draw, newClass } from "./classes.js";
import { find } from "./elements.js";
import { forgetMap, openMap } from "./map.js";
import { takeToken } from "./server.js";

const TITLES = { ask: "nngk", classes: "Classes · nngk", map: "Map · nngk", audit: "Audit · nngk" };
const OPENED = { map: openMap, audit: openAudit };

function view() {
  if (location.hash === "#main") return; // the link that skips to the content
  const asked = location.hash.slice(1);
  const shown = asked in TITLES ? asked : "ask";
  for (const name of Object.keys(TITLES)) {
    find(`view-${name}`).hidden = name !== shown;
    if (name === shown) find(`nav-${name}`).setAttribute("aria-current", "page");
    else find(`nav-${name}`).removeAttribute("aria-current");
  }
  document.title = TITLES[shown];
  OPENED[shown]?.().catch(complain);
}

// A change makes the map and the audit old; they are drawn again when they are looked at.
function changed() {
  forgetMap();
  forgetAudit();
  view();
}

takeToken();
listen();
whenChanged(draw);
whenChanged(again);
whenChanged(changed);
find("filter").addEventListener("input", draw);
find("new-class").addEventListener("click", newClass);
find("undo-last").addEventListener("click", () => undo(known.undo));
addEventListener("hashchange", () => {
  quiet(); // what was said belongs to the view that is left
  view();
});
refresh().catch(complain);
