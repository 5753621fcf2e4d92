// Sign-in: the answer has the second key of the session, which this tab keeps. Its cookie alone opens nothing.
"use strict";

const form = document.querySelector("form");

form.addEventListener("submit", async (e) => {
  e.preventDefault();
  let said = "Sluice cannot be reached.";
  try {
    const answer = await fetch("/login", { method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "application/json" }, cache: "no-store", redirect: "manual" });
    if (answer.ok) {
      const key = (await answer.json()).session;
      sessionStorage.setItem("sluice.session", key);
      new BroadcastChannel("sluice.session").postMessage({ key }); // other tabs have the new cookie, too
      location.replace("/");
      return;
    }
    if (answer.type === "opaqueredirect") { // there is no token any more
      location.replace("/");
      return;
    }
    said = { 401: "That is not a valid token.", 429: "That is not a valid token. Too many wrong ones came from your address within a minute." }[answer.status] || await answer.text();
  } catch { /* it is said below */ }
  let notice = form.querySelector("[role=alert]");
  if (!notice) {
    notice = document.createElement("p");
    notice.className = "notice bad";
    notice.setAttribute("role", "alert");
    form.querySelector("h1").after(notice);
  }
  notice.textContent = said || "That did not work.";
});
