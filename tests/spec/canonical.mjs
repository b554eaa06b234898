// A second implementation of the canonical form, made from spec/ alone: it reads messages, writes
// their canonical bytes and computes their digests. No dependencies; run with
//   node canonical.mjs SPEC_DIRECTORY
// It prints a line for each vector that it does not give, and exits with their number.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const spec = process.argv[2];
const definitions = JSON.parse(readFileSync(join(spec, "message.schema.json"), "utf8")).$defs;
const MAX_DEPTH = 100;
const MAX_DIGITS = 4300;

class Refused extends Error {
  constructor(path, reason) {
    super(`${path}: ${reason}`);
    this.path = path;
  }
}

const child = (path, key) =>
  typeof key === "number" ? `${path}[${key}]` : /^[A-Za-z_][A-Za-z0-9_]*$/.test(key) ? `${path}.${key}` : `${path}[${JSON.stringify(key)}]`;

// A parser that keeps the text of every value, because numbers and unknown parts need it.
function parse(text) {
  let at = 0;
  const fail = (path, reason) => { throw new Refused(path, reason); };
  const space = () => { while (" \t\r\n".includes(text[at]) && at < text.length) at++; };
  const value = (path, depth) => {
    if (depth > MAX_DEPTH) fail(path, "nested too deeply");
    const start = at;
    const done = (node) => ({ ...node, text: text.slice(start, at) });
    if (text[at] === "{") {
      at++;
      const entries = new Map();
      space();
      if (text[at] === "}") { at++; return done({ kind: "object", entries }); }
      for (;;) {
        space();
        if (text[at] !== '"') fail(path, "expected a key");
        const key = string(path);
        space();
        if (text[at++] !== ":") fail(path, "expected a colon");
        space();
        const inner = value(child(path, key), depth + 1);
        if (entries.has(key)) fail(child(path, key), "the key occurs twice");
        entries.set(key, inner);
        space();
        const mark = text[at++];
        if (mark === "}") return done({ kind: "object", entries });
        if (mark !== ",") fail(path, "expected a comma");
      }
    }
    if (text[at] === "[") {
      at++;
      const items = [];
      space();
      if (text[at] === "]") { at++; return done({ kind: "array", items }); }
      for (;;) {
        space();
        items.push(value(child(path, items.length), depth + 1));
        space();
        const mark = text[at++];
        if (mark === "]") return done({ kind: "array", items });
        if (mark !== ",") fail(path, "expected a comma");
      }
    }
    if (text[at] === '"') { const string_ = string(path); return done({ kind: "string", string: string_ }); }
    for (const [word, node] of [["true", { kind: "boolean", value: true }], ["false", { kind: "boolean", value: false }], ["null", { kind: "null" }]])
      if (text.startsWith(word, at)) { at += word.length; return done(node); }
    const number = /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/.exec(text.slice(at));
    if (!number) fail(path, "not JSON");
    at += number[0].length;
    const isInteger = number[2] === undefined && number[3] === undefined;
    if (!isInteger && !Number.isFinite(Number(number[0]))) fail(path, "a number outside the range");
    if (isInteger && number[0].length > MAX_DIGITS) fail(path, "an integer with too many digits");
    return done({ kind: isInteger ? "integer" : "float" });
  };
  const string = (path) => {
    const match = /^"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/.exec(text.slice(at));
    if (!match) fail(path, "not a string");
    at += match[0].length;
    const decoded = JSON.parse(match[0]);
    if (!decoded.isWellFormed()) fail(path, "a lone surrogate");
    return decoded;
  };
  space();
  const node = value("$", 1);
  space();
  if (at !== text.length) fail("$", "more than one value");
  return node;
}

// Canonical JSON of any value.
const byCodePoint = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
const object = (pairs) => `{${pairs.sort(([a], [b]) => byCodePoint(a, b)).map(([key, text]) => `${writeString(key)}:${text}`).join(",")}}`;

function writeString(string) {
  const short = { '"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r" };
  return `"${string.replace(/["\\\u0000-\u001f]/g, (c) => short[c] ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)}"`;
}

function writeFloat(text) {
  const number = Number(text);
  if (number === 0) return Object.is(number, -0) ? "-0.0" : "0.0";
  const sign = number < 0 ? "-" : "";
  // JavaScript chooses the fewest digits, too; only the layout differs.
  const [mantissa, exponent] = Math.abs(number).toExponential().split("e");
  const digits = mantissa.replace(".", "");
  const e = Number(exponent);
  if (e < -5 || e > 15) return `${sign}${digits[0]}${digits.length > 1 ? `.${digits.slice(1)}` : ""}e${e}`;
  if (e < 0) return `${sign}0.${"0".repeat(-e - 1)}${digits}`;
  const whole = digits.slice(0, e + 1).padEnd(e + 1, "0");
  return `${sign}${whole}.${digits.slice(e + 1) || "0"}`;
}

function writeAny(node) {
  switch (node.kind) {
    case "object": return object([...node.entries].map(([key, inner]) => [key, writeAny(inner)]));
    case "array": return `[${node.items.map(writeAny).join(",")}]`;
    case "string": return writeString(node.string);
    case "integer": return BigInt(node.text).toString();
    case "float": return writeFloat(node.text);
    default: return node.text;
  }
}

// Typed parts.
const resolve = (type) => (type.$ref ? definitions[type.$ref.replace("#/$defs/", "")] : type);

function writeTime(text, path) {
  const match = /^(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})0*)?(Z|z|[+-]\d\d:?\d\d)$/.exec(text);
  const date = match && new Date(`${match[1]}T${match[2]}${match[4].toUpperCase()}`);
  const exists = match && !Number.isNaN(Date.parse(`${match[1]}T00:00:00Z`)) && new Date(`${match[1]}T00:00:00Z`).toISOString().startsWith(match[1]);
  if (!exists || Number.isNaN(date.getTime()) || date.toISOString().startsWith("-") || date.toISOString() < "0001") throw new Refused(path, "not a time with a zone, to the microsecond");
  const micros = (match[3] ?? "").padEnd(6, "0");
  return writeString(`${date.toISOString().slice(0, 19)}${micros === "000000" ? "" : `.${micros}`}Z`);
}

// Amounts keep their digits; the exponent decides between the two spellings.
function writeAmount(text, path) {
  const match = /^([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?$/.exec(text);
  if (!match || !(match[2] || match[3])) throw new Refused(path, "not an amount");
  const fraction = match[3] ?? "";
  const digits = `${match[2]}${fraction}`.replace(/^0+(?=\d)/, "");
  const exponent = Number(match[4] ?? 0) - fraction.length;
  const adjusted = exponent + digits.length - 1;
  const sign = match[1] === "-" ? "-" : "";
  if (exponent <= 0 && adjusted >= -6) {
    const padded = digits.padStart(1 - exponent, "0");
    const whole = padded.slice(0, padded.length + exponent);
    return writeString(`${sign}${whole}${exponent < 0 ? `.${padded.slice(padded.length + exponent)}` : ""}`);
  }
  const rest = digits.length > 1 ? `.${digits.slice(1)}` : "";
  return writeString(`${sign}${digits[0]}${rest}E${adjusted < 0 ? "" : "+"}${adjusted}`);
}

function writeTyped(node, given, path, mode) {
  const type = resolve(given);
  const refuse = (reason) => { throw new Refused(path, reason); };
  if (type.discriminator) return writeBlock(node, type, path, mode);
  if (type.anyOf) {
    if (node.kind === "null") return "null";
    return writeTyped(node, type.anyOf.find((one) => one.type !== "null"), path, mode);
  }
  if (type.properties) return writeFields(node, type, path, mode);
  // Enumerations of their own are open; a list of values within a type is closed.
  if (type.enum) {
    if (node.kind !== "string") refuse("expected a string");
    if (!type.title && !type.enum.includes(node.string)) refuse("not one of the values");
    return writeString(node.string);
  }
  switch (type.type) {
    case "string":
      if (type.format === "decimal" && ["integer", "float"].includes(node.kind)) return writeAmount(node.text === "-0" ? "0" : node.text, path);
      if (node.kind !== "string") refuse("expected a string");
      if (type.format === "decimal") return writeAmount(node.string, path);
      return type.format === "date-time" ? writeTime(node.string, path) : writeString(node.string);
    case "integer":
      if (node.kind !== "integer") refuse("expected an integer");
      if (type.minimum !== undefined && BigInt(node.text) < BigInt(type.minimum)) refuse("too small");
      // A limit of 2^63 - 1 is read as the float 2^63 here, so that 64 bits are checked apart.
      if (type.maximum !== undefined && BigInt(node.text) > BigInt(type.maximum)) refuse("too large");
      if (type.maximum !== undefined && BigInt.asIntN(64, BigInt(node.text)) !== BigInt(node.text)) refuse("too large");
      return writeAny(node);
    case "number":
      if (!["integer", "float"].includes(node.kind)) refuse("expected a number");
      if (!Number.isFinite(Number(node.text))) refuse("a number outside the range");
      return writeFloat(node.text);
    case "boolean":
      if (node.kind !== "boolean") refuse("expected a boolean");
      return node.text;
    case "array":
      if (node.kind !== "array") refuse("expected a list");
      return `[${node.items.map((item, index) => (type.items ? writeTyped(item, type.items, child(path, index), mode) : writeAny(item))).join(",")}]`;
    case "object":
      if (node.kind !== "object") refuse("expected an object");
      return writeAny(node);
    default: // free JSON; of a part that only its issuer reads every byte is kept
      return mode.comparable || !path.endsWith(".raw") ? writeAny(node) : node.text;
  }
}

const IGNORED = new Set(["provider_raw", "hints"]);
const ALWAYS = new Set(["metadata", "schema_version"]);

function writeFields(node, type, path, mode) {
  if (node.kind !== "object") throw new Refused(path, "expected an object");
  const pairs = [];
  for (const [name, inner] of Object.entries(type.properties)) {
    const given = node.entries.get(name);
    if (given === undefined) {
      if (type.required?.includes(name)) throw new Refused(child(path, name), "a required field is missing");
      if (ALWAYS.has(name)) pairs.push([name, name === "metadata" ? "{}" : "1"]);
      continue;
    }
    const written = writeTyped(given, inner, child(path, name), mode);
    if (mode.comparable && IGNORED.has(name) && type.title === "MessageMetadata") continue;
    if (!ALWAYS.has(name) && "default" in inner && written === writeAny(parse(JSON.stringify(inner.default)))) continue;
    if (mode.ordinals && (name === "tool_use_id" || (name === "id" && type.title === "ToolUseBlock"))) {
      if (!mode.ordinals.has(given.string)) mode.ordinals.set(given.string, `#${mode.ordinals.size}`);
      pairs.push([name, writeString(mode.ordinals.get(given.string))]);
    } else pairs.push([name, written]);
  }
  for (const [name, given] of node.entries)
    if (!(name in type.properties)) pairs.push([name, mode.comparable ? writeAny(given) : given.text]);
  return object(pairs);
}

function writeBlock(node, type, path, mode) {
  if (node.kind !== "object") throw new Refused(path, "a block is an object");
  const tag = node.entries.get("type");
  if (tag?.kind !== "string") throw new Refused(child(path, "type"), "a block has a type");
  const target = type.discriminator.mapping[tag.string];
  if (target === undefined) return mode.comparable ? writeAny(node) : node.text;
  // The id of a result counts before the ids inside of it.
  const result = node.entries.get("tool_use_id");
  if (mode.ordinals && result?.kind === "string" && !mode.ordinals.has(result.string)) mode.ordinals.set(result.string, `#${mode.ordinals.size}`);
  return writeFields(node, definitions[target.replace("#/$defs/", "")], path, mode);
}

export function canonical(text, mode = {}) {
  const node = parse(text);
  if (node.kind !== "object") throw new Refused("$", "expected an object");
  const written = writeTyped(node, definitions.Message, "$", mode);
  const version = node.entries.get("schema_version");
  // What a newer version wrote is not understood in full, and goes back byte for byte.
  return version && BigInt(version.text) > 1n && !mode.comparable ? text : written;
}

export function content(text) {
  const node = parse(text);
  const mode = { comparable: true, ordinals: new Map() };
  const blocks = writeTyped(node.entries.get("content"), definitions.Message.properties.content, "$.content", mode);
  return `{"content":${blocks},"role":${writeString(node.entries.get("role").string)}}`;
}

const digest = (text) => createHash("sha256").update(text).digest("hex");
const vectors = (name) => JSON.parse(readFileSync(join(spec, "vectors", name), "utf8")).vectors;
let failures = 0;
let count = 0;
const expect = (name, actual, expected) => {
  count++;
  if (actual === expected) return;
  failures++;
  console.log(`${name}\n  expected ${expected}\n  got      ${actual}`);
};

for (const vector of vectors("canonical.json")) {
  expect(vector.name, canonical(vector.input), vector.canonical);
  const comparable = canonical(vector.input, { comparable: true });
  expect(`${vector.name}: comparable`, comparable, vector.comparable ?? vector.canonical);
  expect(`${vector.name}: digest`, digest(comparable), vector.digest);
  if (vector.content) {
    expect(`${vector.name}: content`, content(vector.input), vector.content);
    expect(`${vector.name}: content digest`, digest(content(vector.input)), vector.content_digest);
  }
}
for (const vector of vectors("refused.json")) {
  let path = "accepted";
  try {
    const bytes = vector.hex ? Buffer.from(vector.hex, "hex") : Buffer.from(vector.input);
    canonical(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch (error) {
    path = error instanceof Refused ? error.path : "$";
  }
  expect(vector.name, vector.path === null && path !== "accepted" ? null : path, vector.path);
}
for (const vector of vectors("numbers.json")) expect(vector.input, writeAny(parse(vector.input)), vector.canonical);
for (const vector of vectors("equality.json")) {
  const [first, second] = [vector.first, vector.second].map((text) => canonical(text, { comparable: true }));
  expect(vector.name, first === second, vector.equal);
}
for (const vector of vectors("versions.json")) {
  let result;
  try {
    result = canonical(vector.input);
  } catch (error) {
    result = error.path;
  }
  expect(vector.name, result, vector.canonical ?? vector.error);
}
console.log(`${count - failures} of ${count} results are those of the vectors`);
process.exit(Math.min(failures, 100));
