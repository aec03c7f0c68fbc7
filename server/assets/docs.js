"use strict";
const byId = (id) => document.getElementById(id);
const facts = JSON.parse(byId("facts").textContent);
let body = null; // the body to send: {blob, type, name}

function show(what) {
  body = what;
  const size = what.blob.size;
  byId("file").textContent = `${what.name}, ${size < 10000 ? `${size} bytes` : `${(size / 1000).toFixed(0)} kB`}`;
  const picture = byId("picture");
  if (picture.src) URL.revokeObjectURL(picture.src);
  picture.hidden = !what.type.startsWith("image/");
  if (!picture.hidden) picture.src = URL.createObjectURL(what.blob);
}

byId("picture").addEventListener("load", (event) => {
  const picture = event.target;
  picture.classList.toggle("tiny", picture.naturalWidth < 64);
});
byId("picture").addEventListener("error", (event) => { event.target.hidden = true; });

async function sample() {
  const answer = await fetch("/docs/sample");
  show({ blob: await answer.blob(), type: facts.type, name: facts.sample });
  const text = byId("text");
  text.hidden = facts.text === null;
  text.value = facts.text ?? "";
}

function typeOf(file) {
  const known = { json: "application/json", npy: "application/x-npy" };
  return known[file.name.split(".").pop().toLowerCase()] || file.type || "application/octet-stream";
}

async function take(file) {
  if (!file) return;
  const type = typeOf(file);
  show({ blob: file, type, name: file.name });
  const text = byId("text");
  text.hidden = type !== "application/json" || file.size > 20000;
  text.value = text.hidden ? "" : await file.text();
  send();
}

async function send() {
  const edited = !byId("text").hidden;
  const blob = edited ? new Blob([byId("text").value]) : body.blob;
  const button = byId("send");
  button.disabled = true;
  const began = performance.now();
  try {
    const headers = { "Content-Type": body.type };
    const answer = await fetch(`/predictions/${facts.name}`, { method: "POST", headers, body: blob });
    const bytes = await answer.arrayBuffer();
    showAnswer(answer, bytes, performance.now() - began);
  } catch (error) {
    outcome("bad", "no answer", blob.size > facts.limit ? `: over the limit of ${facts.limit} bytes` : `: ${error.message}`);
    showBody(null, "");
  } finally {
    button.disabled = false;
  }
}

function outcome(kind, first, rest) {
  const status = document.createElement("b");
  status.className = kind;
  status.textContent = first;
  byId("outcome").className = "outcome";
  byId("outcome").replaceChildren(status, rest);
}

function showAnswer(answer, bytes, roundMs) {
  outcome(answer.ok ? "good" : "bad", String(answer.status), ` in ${roundMs.toFixed(roundMs < 10 ? 1 : 0)} ms`);
  const kind = answer.headers.get("Content-Type") || "";
  if (kind.startsWith("application/json") || kind.startsWith("text/")) {
    const text = new TextDecoder().decode(bytes);
    let value = null;
    try { value = JSON.parse(text); } catch { /* not JSON: shown as text */ }
    showBody(value, text);
  } else {
    const picture = answer.ok && kind.startsWith("image/") ? new Blob([bytes], { type: kind }) : null;
    showBody(null, bytes.byteLength ? `${bytes.byteLength} bytes of ${kind || "no type"}` : "no body", picture);
  }
}

function showBody(value, text, picture = null) {
  const shown = byId("shown");
  if (shown.src) URL.revokeObjectURL(shown.src);
  shown.hidden = !picture;
  if (picture) shown.src = URL.createObjectURL(picture);
  const list = byId("classes");
  list.replaceChildren();
  if (value && Array.isArray(value.top_probs))
    value.top_probs.forEach((share, index) => list.append(bar(value, share, index)));
  byId("answer").hidden = !text;
  byId("answer").textContent = text.length > 20000 ? `${text.slice(0, 20000)}…` : text;
}

function bar(value, share, index) {
  const item = document.createElement("li"), label = document.createElement("span");
  const number = document.createElement("span"), track = document.createElement("span"), fill = document.createElement("i");
  label.className = "label";
  label.textContent = value.top_labels ? value.top_labels[index] : `class ${value.top_indices[index]}`;
  number.textContent = `${(share * 100).toFixed(1)} %`;
  track.className = "bar";
  fill.style.width = `${Math.min(100, share * 100)}%`;
  track.append(fill);
  item.append(label, number, track);
  return item;
}

async function state() {
  const badge = byId("state");
  try {
    const answer = await fetch("/v2/health/ready");
    badge.className = answer.ok ? "badge good" : "badge";
    badge.textContent = answer.ok ? "ready" : "not ready";
  } catch {
    badge.className = "badge bad";
    badge.textContent = "gone";
  }
}

async function copy(button) {
  const code = button.closest(".snippet").querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Browsers allow this only on https or localhost; elsewhere copy the selection.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

const drop = byId("drop");
for (const name of ["dragenter", "dragover"])
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"])
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
drop.addEventListener("drop", (event) => take(event.dataTransfer.files[0]));
drop.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") byId("chosen").click(); });
byId("chosen").addEventListener("change", (event) => { take(event.target.files[0]); event.target.value = ""; });
byId("send").addEventListener("click", send);
byId("reset").addEventListener("click", sample);
for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));

// The programs show the address under which the reader has reached this server.
const bare = facts.server.replace("http://", "");
for (const code of document.querySelectorAll(".snippet code"))
  code.textContent = code.textContent.split(facts.server).map((part) => part.replaceAll(bare, location.host)).join(location.origin);

sample();
state();
setInterval(() => { if (!document.hidden) state(); }, 2000);
