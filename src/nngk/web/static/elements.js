// Elements from words: text never becomes markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const find = (id) => document.getElementById(id);

export const percent = (share) => (share >= 0.9995 ? ">99.9%" : share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`);

export const many = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;

// A photo of the model, or words in its place where the file is gone.
export function photo(id, alt) {
  const frame = make("span", { class: "photo" });
  const image = make("img", { alt, loading: "lazy" });
  image.addEventListener("error", () => {
    frame.replaceChildren(make("span", { role: "img", "aria-label": `${alt}: the file is gone` }, "File is gone"));
  });
  image.src = `/photos/${id}`;
  frame.append(image);
  return frame;
}
