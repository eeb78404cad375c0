// The page: two views, one model.

import { again, listen } from "./ask.js";
import { complain, known, refresh, undo, whenChanged } from "./changes.js";
import { draw, newClass } from "./classes.js";
import { find } from "./elements.js";
import { takeToken } from "./server.js";

function view() {
  if (location.hash === "#main") return; // the link that skips to the content
  const classes = location.hash === "#classes";
  find("view-classes").hidden = !classes;
  find("view-ask").hidden = classes;
  find(classes ? "nav-classes" : "nav-ask").setAttribute("aria-current", "page");
  find(classes ? "nav-ask" : "nav-classes").removeAttribute("aria-current");
  document.title = classes ? "Classes · nngk" : "nngk";
}

takeToken();
listen();
whenChanged(draw);
whenChanged(again);
find("filter").addEventListener("input", draw);
find("new-class").addEventListener("click", newClass);
find("undo-last").addEventListener("click", () => undo(known.undo));
addEventListener("hashchange", view);
view();
refresh().catch(complain);
