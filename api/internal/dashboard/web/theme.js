// Light and dark. Without a choice the system decides; a choice is kept in this browser.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
const probe = document.createElement("span");
probe.hidden = true;

const order = ["", "light", "dark"];
const labels = { "": "System", light: "Light", dark: "Dark" };

// onTheme calls back after each change; it returns how to stop that.
export function onTheme(f) {
  listeners.add(f);
  return () => listeners.delete(f);
}

const resolved = new Map();

// colour resolves a custom property to what a canvas takes. Asking the browser makes it work out its styles, so it is asked once a theme.
export function colour(name, alpha = 1) {
  const key = name + alpha;
  if (!resolved.has(key)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = alpha === 1 ? `var(${name})` : `color-mix(in srgb, var(${name}) ${alpha * 100}%, transparent)`;
    resolved.set(key, getComputedStyle(probe).color);
  }
  return resolved.get(key);
}

export const stillness = matchMedia("(prefers-reduced-motion: reduce)");

function changed() {
  resolved.clear();
  for (const f of listeners) f();
}

function choose(theme) {
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  try {
    if (theme) localStorage.setItem("sluice.theme", theme);
    else localStorage.removeItem("sluice.theme");
  } catch { /* it holds until the page is left */ }
  changed();
}

// themeButton makes the button go through system, light and dark.
export function themeButton(button) {
  const label = button.appendChild(document.createElement("span"));
  const show = () => {
    label.textContent = labels[root.dataset.theme || ""];
    button.setAttribute("aria-label", `Theme: ${label.textContent}`);
  };
  button.addEventListener("click", () => {
    choose(order[(order.indexOf(root.dataset.theme || "") + 1) % order.length]);
    show();
  });
  system.addEventListener("change", changed);
  show();
}
