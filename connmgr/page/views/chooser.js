// Chooses a machine as one types.

import { matching, qualified, useChoice, useStore } from "../core/store.js";
import { text } from "../core/ui.js";
import { html, useState } from "../vendor/htm-preact.js";

const MOST_CHOICES = 8;

/** @param {{label: string, choose: (connection: string) => void}} props */
export function Chooser({ label, choose }) {
  const [wanted, want] = useState("");
  const [at, move] = useState(0);
  useStore();
  const found = wanted
    ? matching(wanted)
        .filter((one) => one.usageCategory === "shell")
        .slice(0, MOST_CHOICES)
    : [];
  const open = (/** @type {any} */ one) => {
    want("");
    choose(one.connection);
  };
  const choice = useChoice(() => found.length && open(found[Math.min(at, found.length - 1)]));
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && found.length) {
      event.preventDefault();
      move((at + by + found.length) % found.length);
    } else if (event.key === "Enter") choice.make();
    else if (event.key === "Escape") {
      want("");
      choice.forget();
    }
  };
  return html`
    <div class="choice">
      <input type="search" role="combobox" aria-label=${label} aria-expanded=${found.length > 0} aria-controls="choices"
        aria-activedescendant=${found.length ? `choice-${at}` : undefined} autocomplete="off" placeholder=${label} value=${wanted}
        onKeyDown=${onKeyDown} onInput=${(/** @type {any} */ event) => {
          want(event.target.value);
          move(0);
          choice.forget();
        }} />
      <ul id="choices" role="listbox" aria-label="Machines" hidden=${!found.length}>
        ${found.map(
          (one, index) => html`
            <li key=${one.connection} id=${`choice-${index}`} role="option" aria-selected=${index === at} onClick=${() => open(one)}>${text(qualified(one))}</li>
          `,
        )}
      </ul>
    </div>
  `;
}
