/** Light or dark: the system's wish, until the person says otherwise. */

const KEY = "flashcaps-theme";

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage can be forbidden; the toggle then lasts as long as the page
  }
}

const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function apply(theme, button) {
  document.documentElement.dataset.theme = theme;
  button.setAttribute("aria-pressed", String(theme === "dark"));
}

/** @param {HTMLElement} button */
export function mountTheme(button) {
  apply(stored() ?? system(), button);
  button.addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    apply(theme, button);
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // see above
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => stored() ?? apply(system(), button));
}
