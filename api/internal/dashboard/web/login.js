// Sign-in: nobody who has a session is asked again. Its cookie is sent to its own site alone, so it is missing when a link of another site
// leads here, and present a moment later: then this page would lead on.
"use strict";

fetch("/login", { method: "HEAD", redirect: "manual", cache: "no-store" }).then((answer) => { if (answer.type === "opaqueredirect") location.replace("/"); }, () => {});
