// Builds and changes nodes. Text is only ever set as text, never as markup.

// el makes an element. An attribute that is false or absent is left out; one whose name begins with "on" is a listener.
export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false && c !== ""));
  return node;
}

// text sets the text only where it differs, which avoids a new layout.
export function text(node, said) {
  const value = String(said);
  if (node.textContent !== value) node.textContent = value;
}

// attribute sets or removes an attribute only where it differs.
export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value);
  }
}

// move keeps the focus inside the moved node, where the browser supports it.
const move = (parent, node, before) => (node.isConnected && parent.moveBefore ? parent.moveBefore(node, before) : parent.insertBefore(node, before));

// keyed makes the children of parent one for each item, in order: those of known keys are kept, moved and updated in place.
export function keyed(parent, items, keyOf, make, update) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const known = parent.keyedChildren || (parent.keyedChildren = new Map());
  const seen = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (seen.has(key)) continue;
    seen.add(key);
    let node = known.get(key);
    if (!node) {
      node = make(item);
      known.set(key, node);
    }
    if (node === at) at = at.nextElementSibling;
    else move(parent, node, at);
    update(node, item);
  }
  for (const [key, node] of known) {
    if (seen.has(key)) continue;
    node.remove();
    known.delete(key);
  }
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}
