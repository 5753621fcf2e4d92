// After single sign-on: this tab keeps the second key of the session, as after a sign-in with a token.
"use strict";

const key = document.body.dataset.key;
sessionStorage.setItem("sluice.session", key);
new BroadcastChannel("sluice.session").postMessage({ key }); // other tabs have the new cookie, too
location.replace("/");
