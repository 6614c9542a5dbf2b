// Exchanges the sections that changed; asks for a handoff with the token that was typed. No build step, no library.
"use strict";

const shown = new Map();
const link = document.getElementById("link");
let last = Date.now();

// A section with a form is left alone while somebody is at it, and exchanged only when it says something else.
function exchange(id, html) {
  const section = document.getElementById(id);
  if (!section || shown.get(id) === html) return;
  if (section.contains(document.activeElement) && document.activeElement.matches("input, select, button")) return;
  shown.set(id, html);
  section.innerHTML = html; // escaped by the server; the page's policy runs no script in it
}

function listen() {
  const source = new EventSource("/-/console/live");
  source.onmessage = (message) => {
    last = Date.now();
    link.textContent = "";
    const told = JSON.parse(message.data);
    if (document.querySelectorAll("section").length !== told.order.length) {
      location.reload(); // a role more or less
      return;
    }
    for (const [id, html] of Object.entries(told.sections)) exchange(id, html);
    document.title = told.title;
  };
}

setInterval(() => {
  const age = Math.round((Date.now() - last) / 1000);
  if (age > 4) link.textContent = `✗ No word from this gateway for ${age} s: what stands above is old.`;
}, 1000);

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("form.handoff")) return;
  event.preventDefault();
  const said = form.querySelector("output");
  if (form.typed.value !== form.dataset.role) {
    said.textContent = `✗ Type ${form.dataset.role} to confirm.`;
    return;
  }
  const button = form.querySelector("button");
  button.disabled = true;
  said.textContent = "… under way";
  try {
    const answer = await fetch(form.action, {
      method: "POST",
      headers: { Authorization: `Bearer ${form.token.value}`, "Content-Type": "application/json" },
      body: JSON.stringify({ to: form.to.value, limit: Number(form.limit.value) }),
    });
    const document_ = await answer.json();
    said.textContent = `${answer.ok ? "✓" : "✗"} ${document_.outcome ?? document_.error ?? answer.status}: ${document_.detail ?? ""}`;
  } catch (problem) {
    said.textContent = `✗ ${problem}`;
  }
  form.token.value = "";
  button.disabled = false;
});

listen();
