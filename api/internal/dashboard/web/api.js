// Calls the admin API. Errors are problems (RFC 9457); their titles and details are shown.

export class Problem extends Error {
  constructor(status, body) {
    super([body.title, body.detail].filter(Boolean).join(": ") || `The server answered ${status}.`);
    this.status = status;
    this.type = (body.type || "").split(":").pop();
    this.body = body;
  }
}

// unreachable is the status of a call without an answer.
export const unreachable = 0;

// A session has two keys: a cookie, which scripts cannot read, and this one, which no browser sends by itself. A tab that has none asks the others.
const keyName = "sluice.session", asking = 300; // ms to wait for another tab
const tabs = new BroadcastChannel("sluice.session");
const signed = document.body.dataset.session === "cookie";

function keep(key) {
  try {
    sessionStorage.setItem(keyName, key);
  } catch { /* this tab signs in again */ }
}

function kept() {
  try {
    return sessionStorage.getItem(keyName) || "";
  } catch {
    return "";
  }
}

const first = new Promise((resolve) => {
  tabs.onmessage = ({ data }) => {
    if (data === "ask") {
      if (kept()) tabs.postMessage({ key: kept() });
    } else if (typeof data?.key === "string") {
      keep(data.key);
      resolve();
    }
  };
  if (!signed || kept()) resolve();
  else {
    tabs.postMessage("ask");
    setTimeout(resolve, asking);
  }
});

// request is fetch with the key of the session.
export async function request(path, init) {
  await first;
  const key = kept();
  return fetch(path, { ...init, cache: "no-store", redirect: "error", headers: key ? { ...init.headers, "Sluice-Session": key } : init.headers });
}

async function call(method, path, body, headers) {
  const init = { method, headers: { ...headers } };
  if (body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  let answer;
  try {
    answer = await request(path, init);
  } catch {
    throw new Problem(unreachable, { title: "Sluice cannot be reached" });
  }
  const said = await answer.text().catch(() => "");
  let value = null;
  try {
    value = said ? JSON.parse(said) : null;
  } catch { /* not of the API */ }
  if (answer.ok) return { value, said, tag: answer.headers.get("ETag"), status: answer.status };
  if (answer.status === 401) signInAgain();
  throw new Problem(answer.status, value || {});
}

export const get = async (path) => (await call("GET", path)).value;
export const getText = async (path) => (await call("GET", path)).said;
export const post = async (path, body = {}, headers) => (await call("POST", path, body, headers)).value;
export const patch = async (path, body, headers) => (await call("PATCH", path, body, headers)).value;
export const del = async (path) => (await call("DELETE", path)).value;

// signInAgain opens the sign-in page, which leads back to this view.
export function signInAgain() {
  try {
    sessionStorage.setItem("sluice.return", location.hash);
  } catch { /* sign-in then leads to the overview */ }
  location.assign("/login");
}

export const tenantPath = (tenant, ...rest) => ["/v1/tenants", encodeURIComponent(tenant), ...rest].join("/");
export const tenantLink = (tenant) => "#/tenant/" + encodeURIComponent(tenant);
export const poolPath = (pool, ...rest) => ["/v1/pools", encodeURIComponent(pool), ...rest].join("/");
export const poolLink = (pool) => "#/pool/" + encodeURIComponent(pool);
export const jobLink = (tenant, id) => `${tenantLink(tenant)}/job/${encodeURIComponent(id)}`;

export function query(parameters) {
  const q = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) if (value !== undefined && value !== null && value !== "") q.set(key, value);
  const text = q.toString();
  return text ? "?" + text : "";
}

let document_ = null;

// offers reports whether the OpenAPI document of this server has the operation. The page hides operations that the settings turn off.
export async function offers(method, path) {
  document_ ||= get("/openapi.json").catch(() => {
    document_ = null;
    return {};
  });
  return Boolean((await document_).paths?.[path]?.[method]);
}
