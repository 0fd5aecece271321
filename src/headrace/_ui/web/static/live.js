// Keeps the elements with data-live up to date: every two seconds the same page is read again, and its parts replace
// the old ones. Nothing is read while the page is hidden. A part that has the focus or a selection is left alone.
// While the page can't be read, a bar says so, and the old figures are grey.
"use strict";
const EVERY_MS = 2000;
const EVERY_MS_AT_MOST = 10_000; // while the page can't be read
const ANSWER_WITHIN_MS = 7000; // longer than the program takes to find that the server does not answer
const parts = () => [...document.querySelectorAll("[data-live][id]")];
const bar = document.getElementById("late");
const retries = document.querySelector("[data-retry]") !== null; // in place of a page that could not be made
const opened = new Date().toISOString();
let late = 0;

function inUse(part) {
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  return selected || (part !== document.activeElement && part.contains(document.activeElement));
}

// Reads this page again. Returns its document, or else the reason why there is none.
async function read() {
  const address = new URL(location.href);
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

function show(reason) {
  const moment = document.getElementById("time")?.dateTime || opened;
  const text = reason && `Not up to date since ${moment.slice(11, 19)} UTC: ${reason}`;
  if (bar.textContent !== text) bar.textContent = text;
  bar.hidden = !reason;
  document.body.classList.toggle("late", Boolean(reason));
}

async function look() {
  if (!document.hidden) {
    const {fresh, reason} = await read();
    if (fresh && retries) return location.reload();
    for (const part of fresh ? parts() : []) {
      const by = fresh.getElementById(part.id);
      if (!by || inUse(part) || by.innerHTML === part.innerHTML) continue;
      if (by.dateTime) part.dateTime = by.dateTime;
      part.replaceChildren(...by.childNodes);
    }
    late = fresh ? 0 : late + 1;
    show(reason ?? "");
  }
  setTimeout(look, Math.min(EVERY_MS_AT_MOST, EVERY_MS * (1 + late)));
}

// A bulk action goes on by itself, until the page is left.
const onward = document.querySelector("form[data-onward]");
if (onward) setTimeout(() => onward.requestSubmit(), 200);

if (retries || parts().length) setTimeout(look, EVERY_MS);
