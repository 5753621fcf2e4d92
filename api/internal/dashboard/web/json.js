// JSON as it was written. JSON.parse changes numbers that a double cannot hold, and drops repeated members.

const tokens = (json) => json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) || [];

const opens = (token) => token === "{" || token === "[";
const closes = (token) => token === "}" || token === "]";

// member returns the tokens of the member of that name of an object, null if it has none.
export function member(json, name) {
  let depth = 0, found = null;
  const all = tokens(json);
  for (const [i, token] of all.entries()) {
    if (found && depth === 1 && (token === "," || closes(token))) return found;
    if (found) found.push(token);
    if (opens(token)) depth++;
    if (closes(token)) depth--;
    if (depth === 1 && token === ":" && all[i - 1] === JSON.stringify(name) && !found) found = [];
  }
  return null;
}

// laidOut returns tokens as text, each member and element on a line of its own.
export function laidOut(list) {
  let depth = 0, said = "";
  const line = () => "\n" + "  ".repeat(depth);
  list.forEach((token, i) => {
    const before = list[i - 1] || "";
    if (closes(token)) {
      depth--;
      said += opens(before) ? token : line() + token;
    } else {
      said += (opens(before) || before === "," ? line() : before === ":" ? " " : "") + token;
    }
    if (opens(token)) depth++;
  });
  return said;
}
