// Exchanges the parts of the page that changed. It acts on nothing. No build step, no library.
"use strict";

const OLD_AFTER = 4000; // milliseconds without a word
const shown = new Map();
const spoken = document.getElementById("spoken");
const old = document.getElementById("old");
let last = Date.now();
let said = null;
let source = null;

// Whoever is typing in a part, or stands on a link in it, keeps what they are at.
function exchange(id, html) {
  const part = document.getElementById(id);
  if (!part || shown.get(id) === html) return;
  const held = part.contains(document.activeElement) ? document.activeElement : null;
  if (held && held.matches("input, select, button")) return;
  const scrolled = part.querySelector(".wide")?.scrollLeft ?? 0;
  shown.set(id, html);
  part.innerHTML = html; // escaped by the server; the page's policy runs no script in it
  if (scrolled) part.querySelector(".wide")?.scrollTo(scrolled, 0);
  if (!held) return;
  const again = held.matches("a")
    ? [...part.querySelectorAll("a")].find((link) => link.href === held.href)
    : part.querySelector(held.tagName + (held.className ? "." + held.classList[0] : ""));
  again?.focus({ preventScroll: true });
}

function take(told) {
  const names = Object.keys(told.parts);
  const there = document.querySelectorAll(".part").length;
  if (names.length !== there || names.some((id) => !document.getElementById(id))) {
    location.reload(); // a role more or less
    return;
  }
  for (const [id, html] of Object.entries(told.parts)) exchange(id, html);
  document.title = told.title;
  if (said !== null && said !== told.spoken) spoken.textContent = told.spoken; // read out once, when it changes
  said = told.spoken;
}

function listen() {
  source?.close();
  source = new EventSource("/-/console/live" + location.search);
  source.onmessage = (message) => {
    last = Date.now();
    take(JSON.parse(message.data));
    judge();
  };
}

// The warning is read out once; its seconds go on in silence.
function judge() {
  const age = Date.now() - last;
  const isOld = age > OLD_AFTER;
  if (isOld !== document.body.classList.contains("old")) {
    document.body.classList.toggle("old", isOld);
    old.hidden = !isOld;
    old.firstElementChild.textContent = isOld ? "✗ No word from this gateway: what stands below is old." : "";
  }
  old.lastElementChild.textContent = isOld ? `Last word ${Math.round(age / 1000)} s ago.` : "";
  if (isOld && source.readyState === EventSource.CLOSED) listen();
}

old.lastElementChild.setAttribute("aria-hidden", "true");
setInterval(judge, 1000);
listen();
