// Keeps what is marked data-live up to date: every two seconds the same page is read again, and its parts are put in
// place. Nothing is read while the page is hidden, or while one of the parts has the focus or a selection in it.
"use strict";
const EVERY_MS = 2000;
const parts = () => [...document.querySelectorAll("[data-live][id]")];
let late = 0;

function inUse(part) {
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  return selected || (part !== document.activeElement && part.contains(document.activeElement));
}

async function look() {
  if (!document.hidden && parts().length) {
    try {
      const address = new URL(location.href);
      address.searchParams.delete("outcome");
      const answer = await fetch(address, {credentials: "same-origin", redirect: "error"});
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of parts()) {
          const by = fresh.getElementById(part.id);
          if (by && !inUse(part) && by.innerHTML !== part.innerHTML) part.replaceChildren(...by.childNodes);
        }
        late = 0;
      } else {
        late += 1;
      }
    } catch {
      late += 1;
    }
  }
  setTimeout(look, EVERY_MS * Math.min(15, 1 + late));
}

// A bulk action goes on by itself, until the page is left.
const onward = document.querySelector("form[data-onward]");
if (onward) setTimeout(() => onward.requestSubmit(), 200);

if (parts().length) setTimeout(look, EVERY_MS);
