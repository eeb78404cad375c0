// Changes of the model: asking for the token, doing, telling, undoing.

import { find, make } from "./elements.js";
import * as server from "./server.js";

export const known = { classes: [], changes: [], undo: null };
const listeners = [];

export const whenChanged = (listener) => listeners.push(listener);

export const can = (change) => known.changes.includes(change);

export async function refresh() {
  Object.assign(known, await server.classes());
  find("class-count").textContent = known.classes.length;
  showLock();
  for (const listener of listeners) listener();
}

function showLock() {
  const lock = find("lock");
  lock.textContent = !can("add") ? "Read only" : server.hasToken() ? "Can learn" : "Unlock";
  lock.disabled = !can("add");
  lock.title = can("add") ? "The token that lets this page change the model" : "The server was started without a token";
}

export function tell(words, ...actions) {
  find("toast").replaceChildren(make("span", {}, words), ...actions, close());
}

export function complain(error) {
  find("toast").replaceChildren(make("span", { class: "wrong" }, error.message), close());
}

export const quiet = () => find("toast").replaceChildren();

const close = () => make("button", { type: "button", "aria-label": "Close this message", onclick: quiet }, "✕");

// Open a dialog with a form; `submit` gets its data, and closes it unless it throws.
export function askInDialog(title, fields, action, submit, dangerous = false) {
  const dialog = find("dialog");
  const wrong = make("p", { class: "wrong", role: "alert" });
  const go = make("button", { type: "submit", class: dangerous ? "bad" : "primary" }, action);
  const content = make("form", { method: "dialog" },
    make("h2", { id: "dialog-title" }, title), ...fields, wrong,
    make("div", { class: "row" }, make("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
  content.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await submit(new FormData(content));
      dialog.close();
    } catch (error) {
      wrong.textContent = error.message;
    }
    go.disabled = false;
  });
  dialog.replaceChildren(content);
  dialog.showModal();
}

export function askForToken(then) {
  const field = make("label", { class: "field" }, make("span", {}, "Token"),
    make("input", { type: "password", name: "token", required: true, autocomplete: "off" }));
  const help = make("p", {}, "Whatever changes the model needs the token that the server was started with. It is kept for this tab alone.");
  askInDialog("Let this page change the model", [help, field], "Unlock", async (data) => {
    server.setToken(data.get("token").trim());
    showLock();
    if (then) setTimeout(then);
  });
}

find("lock").addEventListener("click", () => askForToken());

// Make a change, tell what was done with a way to undo it, and return whether it was made.
export async function change(make_it, undoable = true) {
  if (!server.hasToken()) {
    askForToken(() => change(make_it, undoable));
    return false;
  }
  try {
    const done = await make_it();
    await refresh();
    tell(done.said, ...(undoable ? [undoButton(done.change)] : []));
    return true;
  } catch (error) {
    showLock();
    if (error.status === 401) askForToken(() => change(make_it, undoable));
    complain(error);
    return false;
  }
}

// The answer to an undo offers no undo of its own.
export const undo = (id) => change(() => server.undo(id), false);

const undoButton = (id) => make("button", { type: "button", onclick: () => undo(id) }, "Undo");
