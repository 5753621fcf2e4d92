// Confirms an action. The dialog describes its effect, with figures; Escape and Cancel close it without effect.
import { el, text } from "./dom.js";

// toast shows a result for a while, or until the next one.
export function toast(said, tone = "good") {
  const banner = document.getElementById("banner");
  const node = el("p", { class: "notice " + tone }, said);
  banner.querySelector("[data-toast]")?.remove();
  node.dataset.toast = "";
  banner.append(node);
  setTimeout(() => node.remove(), 8000);
}

// ask opens the dialog. run does the action and may return a text for a toast. When it fails, the dialog stays open and shows the error. run gets the text of the reason.
export function ask({ title, lines = [], extra = null, reason = false, danger = false, confirm, run }) {
  const said = el("p", { class: "notice bad", role: "alert", hidden: true });
  const why = el("input", { id: "ask-reason", maxlength: 255, autocomplete: "off", placeholder: "Kept in the history" });
  const go = el("button", { class: danger ? "primary danger" : "primary" }, confirm);
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const list = el("ul", null, lines.map((line) => el("li", null, line)));
  const form = el("form", { method: "dialog" }, el("h2", { id: "ask-title" }, title), lines.length > 0 && list, extra,
    reason && el("div", { class: "field" }, el("label", { for: "ask-reason" }, "Reason"), why), said, el("div", { class: "actions" }, cancel, go));
  const dialog = el("dialog", { "aria-labelledby": "ask-title" }, form);
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    go.disabled = true;
    said.hidden = true;
    try {
      const done = await run(why.value.trim(), (progress) => text(go, progress));
      dialog.close();
      if (done) toast(done);
    } catch (problem) {
      text(said, problem.message);
      said.hidden = false;
      go.disabled = false;
      text(go, confirm);
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (reason ? why : cancel).focus();
  return { dialog, list, go };
}
