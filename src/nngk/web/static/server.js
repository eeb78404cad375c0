// What the page asks of the server. The token is kept for this tab alone.

const KEY = "nngk-token";

export function takeToken() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (!given) return;
  sessionStorage.setItem(KEY, decodeURIComponent(given[1]));
  history.replaceState(null, "", location.pathname);
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

async function ask(method, path, body) {
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body && !(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, { method, headers, body, cache: "no-store", credentials: "omit" });
  } catch {
    throw new Error("The server cannot be reached.");
  }
  const said = await response.json().catch(() => ({}));
  if (!response.ok) {
    if (response.status === 401) setToken(null);
    throw Object.assign(new Error(said.error || `The server answered ${response.status}.`), { status: response.status });
  }
  return said;
}

function form(fields, files) {
  const data = new FormData();
  for (const [name, value] of Object.entries(fields)) data.append(name, value);
  for (const [name, file] of files) data.append(name, file, "picture");
  return data;
}

export const classify = (file) => ask("POST", "/classify?evidence=6&top=5", form({}, [["image", file]]));
export const classes = () => ask("GET", "/classes");

// A name that is nearly a known one is questioned once; who gives it again is sure.
const questioned = new Set();
export async function teach(name, files) {
  try {
    return await ask("POST", "/classes", form({ name, sure: questioned.has(name) }, files.map((file) => ["images", file])));
  } catch (error) {
    if (error.status === 409) questioned.add(name);
    throw error;
  }
}

export const remove = (name) => ask("DELETE", `/classes?name=${encodeURIComponent(name)}`);
export const rename = (old, name) => ask("POST", "/classes/rename", { old, new: name });
export const merge = (source, target) => ask("POST", "/classes/merge", { source, target });
export const undo = (change) => ask("POST", "/undo", { change });
export const allPhotos = (name) => ask("GET", `/classes/photos?count=1000&name=${encodeURIComponent(name)}`);
export const map = () => ask("GET", "/map");
export const mapPhotos = (version, places) => ask("GET", `/map/photos?version=${version}&places=${places.join(",")}`);
export const near = (version, place) => ask("GET", `/map/near/${place}?version=${version}`);
export const audit = () => ask("GET", "/audit");
