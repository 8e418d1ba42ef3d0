"use strict";
/* What has to work when the process does not: saying how old the page is. And the choice of light or dark. */
(() => {
  const root = document.documentElement;
  const THEMES = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const OLD_S = 5;

  const theme = () => {
    try {
      return localStorage.getItem("mm2-theme") || "system";
    } catch {
      return "system";
    }
  };
  const apply = () => {
    const chosen = theme();
    if (chosen === "system") delete root.dataset.theme;
    else root.dataset.theme = chosen;
    const button = document.getElementById("theme");
    if (button) button.textContent = THEMES[chosen];
  };
  apply();

  /* When the newest snapshot came, by this browser's clock, and how old it was then. */
  let mark = "";
  let came = performance.now();

  const look = () => {
    apply();
    const place = document.getElementById("as-of");
    const alarm = document.getElementById("alarm");
    if (!place || !alarm) return;
    if (place.dataset.at !== mark) {
      mark = place.dataset.at;
      came = performance.now();
    }
    const age = Math.round((performance.now() - came) / 1000 + Number(place.dataset.age || 0));
    const lost = window.socket ? !window.socket.connected : false;
    let words = "";
    if (lost && age > OLD_S) {
      words = `Connection lost. What stands here is ${age} seconds old, as of ${place.dataset.clock} UTC.`;
    } else if (age > OLD_S) {
      words = `What stands here is ${age} seconds old, as of ${place.dataset.clock} UTC: the process sends nothing new.`;
    }
    alarm.hidden = !words;
    if (alarm.textContent !== words) alarm.textContent = words;
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest || !event.target.closest("#theme")) return;
    const names = Object.keys(THEMES);
    try {
      localStorage.setItem("mm2-theme", names[(names.indexOf(theme()) + 1) % names.length]);
    } catch {
      /* without a place to keep it, it stays as the system is */
    }
    apply();
  });
  document.addEventListener("DOMContentLoaded", () => {
    look();
    setInterval(look, 500);
  });
})();
