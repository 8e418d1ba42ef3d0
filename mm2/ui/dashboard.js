"use strict";
/* Shows the age of the page, also if the process does not respond; and switches between the light and the dark theme. */
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

  /* Called by the process when a search, a filter or an order changes. */
  window.mm2SetAddress = (params) => {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(params)) {
      if (value) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
    }
    history.replaceState(history.state, "", url);
  };

  /* When the newest snapshot was received, by this browser's clock. */
  let newest = "";
  let receivedAt = performance.now();

  const refresh = () => {
    apply();
    const asOf = document.getElementById("as-of");
    const alarm = document.getElementById("alarm");
    if (!asOf || !alarm) return;
    if (asOf.dataset.at !== newest) {
      newest = asOf.dataset.at;
      receivedAt = performance.now();
    }
    const age = Math.round((performance.now() - receivedAt) / 1000 + Number(asOf.dataset.age || 0));
    const isLost = window.socket ? !window.socket.connected : false;
    let text = "";
    if (isLost && age > OLD_S) {
      text = `Connection lost. This page is ${age} seconds old, as of ${asOf.dataset.clock} UTC.`;
    } else if (age > OLD_S) {
      text = `This page is ${age} seconds old, as of ${asOf.dataset.clock} UTC: the process sends no updates.`;
    }
    alarm.hidden = !text;
    if (alarm.textContent !== text) alarm.textContent = text;
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest || !event.target.closest("#theme")) return;
    const names = Object.keys(THEMES);
    try {
      localStorage.setItem("mm2-theme", names[(names.indexOf(theme()) + 1) % names.length]);
    } catch {
      /* without local storage, the theme of the system is used */
    }
    apply();
  });
  document.addEventListener("DOMContentLoaded", () => {
    refresh();
    setInterval(refresh, 500);
  });
})();
