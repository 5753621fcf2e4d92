// Runs before the first paint, so that a chosen theme does not flash the other one.
"use strict";

try {
  const chosen = localStorage.getItem("sluice.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing follows the system */ }
