// Keeps the elements with data-live up to date: every two seconds the same page is read again, and what differs is
// changed in place. So an opened payload stays open, and text that was typed, the focus and the scrolling stay.
// Nothing is read while the page is hidden. While the page can't be read, a bar says so, and the old figures are grey.
// Besides: keys, light and dark, buttons that copy, and the values of charts below the pointer.
"use strict";
const EVERY_MS = 2000;
const EVERY_MS_AT_MOST = 10_000; // while the page can't be read
const ANSWER_WITHIN_MS = 7000; // longer than the program takes to find that the server does not answer
const KEYS_WITHIN_MS = 1500; // between g and the page's letter
const by = (id) => document.getElementById(id);
const bar = by("late"), live = by("live"), dialog = by("keys");
const retries = document.querySelector("[data-retry]") !== null; // in place of a page that could not be made
const opened = new Date().toISOString();

// -- the page in place of the old one ---------------------------------------------------------------------

const typedIn = new WeakSet(); // forms: they are left as they are
document.addEventListener("input", (event) => event.target.form && typedIn.add(event.target.form));

const parts = () =>
  [...document.querySelectorAll("[data-live][id]")].filter((part) => !part.parentElement.closest("[data-live][id]"));

const isSelected = (node) => {
  const selection = document.getSelection();
  return selection.isCollapsed === false && selection.containsNode(node, true);
};
const isInUse = (form) => typedIn.has(form) || form.contains(document.activeElement);

function staysWithoutFresh(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return false;
  const forms = [...(node.matches("form") ? [node] : []), ...node.querySelectorAll("form")];
  return node.matches("[data-keep]") || forms.some(isInUse);
}

// Names the subject of an element, to find it again in the fresh page: a row its job, a form its fields.
function nameOf(node) {
  const first = (which) => node.querySelector(which);
  if (node.matches("[data-keep]")) return "kept";
  if (node.id || node.dataset.key) return node.id || node.dataset.key;
  switch (node.nodeName) {
    case "TR":
    case "LI": {
      const head = first("th");
      const link = head?.querySelector("a") ?? (head ? null : first("a"));
      return link?.getAttribute("href") ?? head?.textContent ?? first("time")?.dateTime ?? "";
    }
    case "FORM":
      return [...node.querySelectorAll("[type=hidden]")].map((field) => field.value).join(" ");
    case "DETAILS":
    case "SECTION":
    case "FIGURE":
      return (first("summary, h2, h3, strong")?.textContent ?? "").replace(/[\d,.]+/g, "");
    default:
      return "";
  }
}

const exactly = (node) =>
  node.nodeType === Node.ELEMENT_NODE ? `${loosely(node) ?? node.nodeName} ${nameOf(node)}` : node.nodeName;
const loosely = (node) => (node.nodeName === "FORM" ? `FORM ${node.getAttribute("action")}` : null);

// Pairs the children of two elements: a map from the children of the fresh one.
function paired(old, fresh) {
  const pairs = new Map(), rest = new Set(old.childNodes);
  for (const key of [exactly, loosely]) {
    const known = new Map();
    for (const child of rest) {
      const name = key(child);
      if (name) known.has(name) ? known.get(name).push(child) : known.set(name, [child]);
    }
    for (const wanted of fresh.childNodes) {
      const child = pairs.has(wanted) ? null : known.get(key(wanted))?.shift();
      if (child) pairs.set(wanted, child), rest.delete(child);
    }
  }
  return {pairs, rest};
}

function become(old, fresh) {
  if (old.isEqualNode(fresh) || (old.nodeName === "FORM" && isInUse(old))) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (!isSelected(old)) old.data = fresh.data;
    return;
  }
  for (const {name} of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const {name, value} of fresh.attributes)
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const {pairs, rest} = paired(old, fresh);
  for (const child of rest) {
    const read = child.querySelector?.("details[open]") || (child.nodeType === Node.ELEMENT_NODE && isSelected(child));
    if (read) child.classList.add("gone"); // somebody reads it: it goes later
    else if (!staysWithoutFresh(child)) child.remove();
  }
  let next = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    while (rest.has(next)) next = next.nextSibling;
    const child = pairs.get(wanted);
    if (!child) old.insertBefore(wanted, next);
    else if (child === next) next = next.nextSibling;
    else if (old.moveBefore) old.moveBefore(child, next); // keeps the focus and the scrolling
    else old.insertBefore(child, next);
    if (child) become(child, wanted);
  }
}

function update(fresh) {
  prepare(fresh);
  const focused = document.activeElement;
  for (const part of parts()) {
    const now = fresh.getElementById(part.id);
    if (now) become(part, now);
    else part.replaceChildren();
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus({preventScroll: true});
  tally();
  if (pointed) point(pointed.figure, pointed.index);
}

// -- reading it -------------------------------------------------------------------------------------------

// Reads this page again. Returns its document, or else the reason why there is none.
async function read() {
  const address = new URL(by("content").dataset.address ?? location.href, location.href);
  address.searchParams.delete("outcome");
  try {
    const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
    const answer = await fetch(address, {credentials: "same-origin", redirect: "manual", signal});
    if (answer.type === "opaqueredirect") return {reason: "This page has moved, or wants a login. Load it again."};
    const text = await answer.text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (answer.ok) return {fresh};
    if (answer.headers.get("content-type")?.startsWith("text/plain")) return {reason: text};
    const reason = fresh.querySelector("[data-reason]")?.textContent;
    return {reason: reason ?? `The program does not answer (${answer.status}).`};
  } catch {
    return {reason: "The program does not answer."};
  }
}

function mark(state) {
  if (!live || live.dataset.state === state) return;
  live.dataset.state = state;
  live.className = state === "Live" ? "live" : `live ${state.toLowerCase()}`;
  live.textContent = state;
}

function show(reason) {
  const moment = by("time")?.dateTime || opened;
  const text = reason && `Not up to date since ${moment.slice(11, 19)} UTC: ${reason}`;
  if (bar.textContent !== text) bar.textContent = text;
  bar.hidden = !reason;
  document.body.classList.toggle("late", Boolean(reason));
  mark(document.hidden ? "Paused" : reason ? "Late" : "Live");
}

let late = 0, reading = false, timer = 0;

async function look() {
  clearTimeout(timer);
  if (reading || document.hidden) return;
  reading = true;
  const slow = setTimeout(mark, EVERY_MS, "Late");
  let {fresh, reason} = await read();
  clearTimeout(slow);
  reading = false;
  if (fresh && retries) return location.reload();
  try {
    if (fresh) update(fresh);
  } catch (error) {
    reason = `It can't be shown (${error}). Load it again.`;
  }
  late = reason ? late + 1 : 0;
  show(reason ?? "");
  timer = setTimeout(look, Math.min(EVERY_MS_AT_MOST, EVERY_MS * (1 + late)));
}

// A bulk action goes on by itself, until the page is left.
const onward = document.querySelector("form[data-onward]");
if (onward) setTimeout(() => onward.requestSubmit(), 200);

if (retries || !document.querySelector("[data-reason]")) {
  if (!retries) mark(document.hidden ? "Paused" : "Live");
  timer = setTimeout(look, EVERY_MS);
  document.addEventListener("visibilitychange", () => (document.hidden ? mark("Paused") : look()));
  for (const name of ["online", "offline"]) addEventListener(name, look);
}

// -- buttons that copy ------------------------------------------------------------------------------------

// Before a page is shown: parts that need this script, or the clipboard, appear only with it.
function prepare(root) {
  for (const button of root.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  for (const one of root.querySelectorAll("time")) {
    const at = new Date(one.dateTime);
    if (isNaN(at) || !at.getTimezoneOffset()) continue; // UTC is the time here
    const here = `${at.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit"})} here`;
    if (one.dataset.local === undefined) one.title = `${one.title} (${here})`;
    else one.textContent += ` (${here})`;
  }
}
prepare(document);

document.addEventListener("click", async ({target}) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  const source = by(button.dataset.copy), label = (button.dataset.label ??= button.textContent);
  try {
    await navigator.clipboard.writeText(button.dataset.text ?? source.value ?? source.textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser refused";
  }
  setTimeout(() => (button.textContent = label), EVERY_MS);
});

// -- menus ------------------------------------------------------------------------------------------------

const closed = (but) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(but)) menu.open = false;
};
document.addEventListener("click", ({target}) => closed(target));
document.addEventListener("focusin", ({target}) => closed(target));
document.addEventListener("keydown", ({key, target}) => {
  const menu = key === "Escape" && target.closest("details.menu[open]");
  if (menu) closed(null), menu.firstElementChild.focus();
});

// -- ticked rows ------------------------------------------------------------------------------------------

// The bar is shown while rows are ticked. A row that has gone, and is still read, can't be.
function tally() {
  const bar = by("ticked"), all = document.querySelector("thead .tick input");
  if (!bar) return;
  for (const box of document.querySelectorAll(".gone .tick input")) box.checked = !(box.disabled = true);
  const boxes = [...document.querySelectorAll("tbody .tick input:enabled")];
  const ticked = boxes.filter((box) => box.checked).length;
  bar.hidden = !ticked;
  const text = ticked ? `${ticked} ticked` : "";
  if (by("tally").textContent !== text) by("tally").textContent = text;
  if (!all) return;
  all.checked = ticked > 0 && ticked === boxes.length;
  all.indeterminate = ticked > 0 && ticked < boxes.length;
}
tally();

document.addEventListener("change", ({target}) => {
  if (!target.matches(".tick input")) return;
  const boxes = target.closest("thead") ? document.querySelectorAll("tbody .tick input:enabled") : [];
  for (const box of boxes) box.checked = target.checked;
  tally();
});

// -- light and dark ---------------------------------------------------------------------------------------

function keep(choice) {
  const path = new URL(document.querySelector("a.brand").href).pathname, year = 365 * 24 * 3600;
  document.cookie = `${choice}; path=${path}; max-age=${year}; samesite=strict`;
}

const scheme = by("scheme");
if (scheme) {
  scheme.hidden = false;
  scheme.addEventListener("click", () => {
    const root = document.documentElement;
    const shown = root.dataset.scheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.scheme = shown === "dark" ? "light" : "dark";
    keep(`headrace_scheme=${root.dataset.scheme}`);
  });
}

// -- keys -------------------------------------------------------------------------------------------------

const PLACES = {o: "./", q: "#queues", d: "dead", w: "workers", s: "schedules", f: "flows", t: "tenants"};
const OFF = "headrace_keys=off"; // the cookie of a user who wants none
let row = 0, going = 0;

function walk(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((one) => one.querySelector("a"));
  const at = rows.findIndex((one) => one.contains(document.activeElement));
  row = Math.max(0, Math.min(rows.length - 1, at < 0 ? row : at + step)); // where it was, if that has gone
  rows[row]?.querySelector("a").focus();
  rows[row]?.scrollIntoView({block: "nearest"});
}

const KEYS = {
  "/": () => by("find").select(),
  "?": () => dialog.showModal(),
  j: () => walk(1),
  k: () => walk(-1),
  z: () => {
    const spans = [...document.querySelectorAll(":is(.spans, .tabs[aria-label='How long']) a")];
    spans[(spans.findIndex((one) => one.ariaCurrent) + 1) % spans.length]?.click();
  },
  x: () => document.activeElement.closest("tbody tr")?.querySelector(".tick input")?.click(),
  g: () => (going = Date.now()),
};

document.addEventListener("keydown", (event) => {
  const {key, target} = event;
  const types = target.closest("input, textarea, select, [contenteditable]") && target.type !== "checkbox";
  if (key === "Escape" && types) target.blur();
  const free = !types && !dialog?.open && !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
  if (!free || (document.cookie.includes(OFF) && key !== "?")) return;
  const goes = Date.now() - going < KEYS_WITHIN_MS && PLACES[key];
  const link = goes && document.querySelector(`header nav a[href$="${goes}"]`);
  const act = link ? () => link.click() : KEYS[key];
  going = 0;
  if (!act) return;
  event.preventDefault();
  act();
});

const help = by("help"), keysOn = by("keys-on");
if (help) {
  help.hidden = false;
  help.addEventListener("click", KEYS["?"]);
}
if (keysOn) {
  keysOn.checked = !document.cookie.includes(OFF);
  keysOn.addEventListener("change", () => keep(keysOn.checked ? "headrace_keys=on" : OFF));
}

// -- charts: the moment and the values below the pointer, or by the arrow keys ----------------------------

let pointed = null; // the chart, and the number of its point

function point(figure, index) {
  if (pointed && pointed.figure !== figure) unpoint();
  const {labels, lines, places} = JSON.parse(figure.dataset.chart);
  if (!labels.length) return;
  const at = Math.max(0, Math.min(labels.length - 1, index));
  const place = `${places?.[at] ?? (at / Math.max(1, labels.length - 1)) * 100}%`;
  const cursor = figure.querySelector(".cursor"), readout = figure.querySelector(".readout");
  cursor.setAttribute("x1", place);
  cursor.setAttribute("x2", place);
  cursor.classList.add("on");
  readout.textContent = [labels[at], ...lines.map(({name, values}) => `${name} ${values[at]}`)].join(" · ");
  pointed = {figure, index: at};
}

function unpoint() {
  pointed?.figure.querySelector(".cursor")?.classList.remove("on");
  pointed?.figure.querySelector(".readout")?.replaceChildren();
  pointed = null;
}

function pointBy(event) {
  const figure = event.target.closest?.("svg")?.closest("figure[data-chart]");
  if (!figure) return pointed && !pointed.figure.contains(document.activeElement) && unpoint();
  const {left, width} = figure.querySelector("svg").getBoundingClientRect();
  const {labels, places} = JSON.parse(figure.dataset.chart);
  const at = ((event.clientX - left) / width) * 100;
  const away = labels.map((_, i) => Math.abs((places?.[i] ?? (i / Math.max(1, labels.length - 1)) * 100) - at));
  point(figure, away.indexOf(Math.min(...away)));
}
for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, pointBy);

document.addEventListener("focusin", ({target}) => {
  const figure = target.closest("figure[data-chart] svg")?.closest("figure");
  if (figure && pointed?.figure !== figure) point(figure, Infinity);
  else if (!figure) unpoint();
});

document.addEventListener("keydown", (event) => {
  const figure = event.target.closest("figure[data-chart] svg")?.closest("figure");
  const index = pointed?.figure === figure ? pointed?.index : Infinity;
  const to = {ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: Infinity}[event.key];
  if (!figure || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  point(figure, to);
});
