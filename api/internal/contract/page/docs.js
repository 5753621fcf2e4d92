// Lists the operations of /openapi.json. Text is only ever set as text, never as markup.
"use strict";

const methods = ["get", "post", "put", "patch", "delete", "head", "options"];

function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return node;
}

function table(rows) {
  return el("div", { class: "scroll" }, el("table", null, el("tbody", null,
    ...rows.map(([name, kind, text]) => el("tr", null, el("th", null, el("code", null, name)), el("td", null, kind), el("td", null, text))))));
}

function resolve(document_, schema) {
  if (schema && schema.allOf) return resolve(document_, schema.allOf[0]);
  if (!schema || !schema.$ref) return schema || {};
  return document_.components.schemas[schema.$ref.split("/").pop()] || {};
}

function kindOf(schema) {
  if (!schema) return "any";
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  if (schema.$ref) return schema.$ref.split("/").pop();
  const kind = [].concat(schema.type || "any").join(" or ");
  return schema.items ? kind + " of " + kindOf(schema.items) : kind;
}

function rules(schema) {
  if (schema.anyOf) return rules(schema.anyOf[0]);
  const said = [];
  if (schema.minimum !== undefined) said.push("at least " + schema.minimum);
  if (schema.maximum !== undefined) said.push("at most " + schema.maximum);
  if (schema.enum) said.push("one of " + schema.enum.join(", "));
  return said.length ? "(" + said.join(", ") + ")" : "";
}

function fields(document_, schema) {
  const whole = resolve(document_, schema);
  const required = new Set(whole.required || []);
  return Object.entries(whole.properties || {}).map(([name, s]) =>
    [name + (required.has(name) ? "" : "?"), kindOf(s), [s.description, rules(s)].filter(Boolean).join(" ")]);
}

function content(part) {
  const first = Object.entries((part && part.content) || {})[0];
  return first ? { format: first[0], schema: first[1].schema } : null;
}

function describe(document_, method, path, op) {
  const section = el("section", { id: op.operationId },
    el("h2", null, el("span", { class: "method" }, method.toUpperCase()), " ", path),
    el("p", null, op.summary + ". " + (op.description || "")));
  if (op.parameters && op.parameters.length) {
    section.append(el("h3", null, "Parameters"), table(op.parameters.map((p) => [p.name, p.in, p.description || ""])));
  }
  const body = content(op.requestBody);
  if (body) section.append(el("h3", null, "Body: " + body.format), table(fields(document_, body.schema)));
  section.append(el("h3", null, "Answers"), table(Object.entries(op.responses).sort().map(([status, r]) => {
    const of = content(r);
    return [status, of ? kindOf(of.schema) : "", r.description];
  })));
  return section;
}

function models(document_) {
  return Object.entries(document_.components.schemas).sort().map(([name, schema]) =>
    el("section", { id: "schema-" + name }, el("h2", null, name), table(fields(document_, schema))));
}

async function show() {
  const answer = await fetch("/openapi.json");
  const document_ = await answer.json();
  const contents = el("ul");
  const operations = document.getElementById("operations");
  for (const [path, item] of Object.entries(document_.paths).sort()) {
    for (const method of methods.filter((m) => item[m])) {
      contents.append(el("li", null, el("a", { href: "#" + item[method].operationId }, method.toUpperCase() + " " + path)));
      operations.append(describe(document_, method, path, item[method]));
    }
  }
  operations.append(...models(document_));
  document.getElementById("contents").append(contents);
  document.getElementById("summary").replaceChildren(
    document_.info.title + ", version " + document_.info.version + ". " + document_.info.description + " The same as a document: ",
    el("a", { href: "/openapi.json" }, "/openapi.json"), ".");
  document.title = document_.info.title;
}

show().catch(() => { document.getElementById("summary").textContent = "The document /openapi.json could not be read."; });
