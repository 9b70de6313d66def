// Replaces the sections that changed. The others stay, so that a command can be selected and copied.
let silence;
const heard = () => {
  clearTimeout(silence);
  document.body.classList.remove("gone");
  silence = setTimeout(() => document.body.classList.add("gone"), 6000);
};
const show = html => {
  const next = document.createElement("main");
  next.innerHTML = html;
  for (const section of next.children) {
    const old = document.getElementById(section.id);
    if (old && old.outerHTML !== section.outerHTML) {
      old.className = section.className;
      old.innerHTML = section.innerHTML;
    }
  }
  document.title = document.querySelector("#state h2").textContent + " – walrelay";
};
const events = new EventSource("events");
events.onmessage = event => { heard(); show(event.data); };
// Too many pages are open. Where the relay is away, the browser asks again by itself.
events.onerror = () => { if (events.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000); };
heard();
