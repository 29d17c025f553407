// Building and updating the document, from text alone. Views build a fresh tree with `el` each time and `fill`
// changes the existing one to match: nodes stay, so focus, selection, scrolling and open details survive an
// update. Everything becomes a text node or an attribute; no string is parsed as HTML anywhere on the page.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. `attributes`: a value of null, undefined or false leaves the attribute out, true sets it empty;
 * `vars` sets CSS custom properties (through the CSSOM, which a strict CSP allows); `key` names it among its
 * siblings. `children`: nodes, strings, numbers, arrays of them; null and false are left out.
 */
export function el(tag, attributes = {}, ...children) {
  const node =
    tag === "svg" || tag === "use" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "vars") {
      for (const [property, amount] of Object.entries(value)) node.style.setProperty(property, amount);
    } else if (name === "key") {
      node.dataset.key = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child instanceof Node) node.appendChild(child);
    else if (child !== null && child !== undefined && child !== false && child !== "")
      node.append(String(child));
  }
}

/** An icon of the sprite in the page; `title` makes it speak, else it is decoration. */
export function icon(name, { title = null, kind = name } = {}) {
  const use = el("use", { href: `#i-${name}` });
  return el(
    "svg",
    {
      class: `icon icon-${kind}`,
      "aria-hidden": title ? null : "true",
      role: title ? "img" : null,
      "aria-label": title,
    },
    use,
  );
}

/** Change what is inside `parent` into `children`. */
export function fill(parent, ...children) {
  const fresh = document.createDocumentFragment();
  append(fresh, children);
  syncChildren(parent, fresh);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset?.key : undefined;
}

function alike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

function syncChildren(parent, fresh) {
  const keyed = new Map();
  for (const node of parent.childNodes) {
    const key = keyOf(node);
    if (key !== undefined) keyed.set(key, node);
  }
  let next = parent.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    let match = key !== undefined ? keyed.get(key) : next;
    if (key === undefined && match && keyOf(match) !== undefined) match = null;
    if (match && alike(match, wanted)) {
      if (match === next) next = next.nextSibling;
      else parent.insertBefore(match, next);
      sync(match, wanted);
    } else {
      parent.insertBefore(wanted, next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

function sync(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  // What the reader opened or closed stays so; inline styles go through the CSSOM below.
  const kept = (name) => name === "style" || (name === "open" && old.nodeName === "DETAILS");
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !kept(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (!kept(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style && fresh.style && old.style.cssText !== fresh.style.cssText)
    old.style.cssText = fresh.style.cssText;
  syncChildren(old, fresh);
}

/** Call `actions[name](element)` when something with `data-do="name"` inside `root` is used. */
export function listen(root, actions) {
  root.addEventListener("click", (event) => {
    const source = event.target.closest?.("[data-do]");
    if (source && root.contains(source)) actions[source.dataset.do]?.(source);
  });
}

/** Foreign text in which `words between backticks` are code: pieces for `el`. */
export function prose(text) {
  return plain(text)
    .split(/`([^`\n]+)`/)
    .map((piece, index) => (index % 2 ? el("code", {}, piece) : piece));
}

// Characters that could reorder or hide what is written around them, and controls: shown, not obeyed.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Foreign text (a host name, a log line, a model's answer) with invisible characters made visible. */
export function plain(text) {
  return String(text ?? "").replace(UNSEEN, (char) => {
    const code = char.charCodeAt(0);
    return code < 0x20
      ? String.fromCharCode(0x2400 + code)
      : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
