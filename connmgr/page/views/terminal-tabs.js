// The tabs of the terminal view: which terminals are shown, and how they share the window. Kept by this window's
// sessionStorage, so that a reload finds them again; another device finds the terminals in the list of those that run.

const KEY = "connmgr.terminal.tabs";
export const MAX_PANES = 4;

/** @typedef {{panes: string[], stacked: boolean}} Tab */

/** @returns {Tab[]} */
export function storedTabs() {
  try {
    const stored = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    return stored.filter((/** @type {any} */ tab) => Array.isArray(tab?.panes) && tab.panes.length);
  } catch {
    return [];
  }
}

/** @param {Tab[]} tabs */
export function storeTabs(tabs) {
  sessionStorage.setItem(KEY, JSON.stringify(tabs));
}

/** The last part of a tab's address: ids side by side with commas, one below the other with semicolons. */
export function addressOf(/** @type {Tab} */ tab) {
  return tab.panes.join(tab.stacked ? ";" : ",");
}

/** @param {string} address @returns {Tab} */
export function tabAt(address) {
  const stacked = address.includes(";");
  const ids = address.split(/[,;]/).filter((id) => /^[0-9a-f-]{36}$/.test(id));
  return { panes: [...new Set(ids)].slice(0, MAX_PANES), stacked };
}

/**
 * The tabs after an address was opened, and the index of its tab: an address of one terminal finds the tab in which it
 * is; another layout of the same terminals replaces the one before.
 * @param {Tab[]} tabs @param {Tab} opened @returns {{tabs: Tab[], index: number}}
 */
export function opened(tabs, opened) {
  if (!opened.panes.length) return { tabs, index: -1 };
  const index = tabs.findIndex((tab) => opened.panes.some((id) => tab.panes.includes(id)));
  if (index < 0) return { tabs: [...tabs, opened], index: tabs.length };
  if (opened.panes.length === 1 || addressOf(tabs[index]) === addressOf(opened)) return { tabs, index };
  const others = tabs.map((tab, each) =>
    each === index ? opened : { ...tab, panes: tab.panes.filter((id) => !opened.panes.includes(id)) },
  );
  const left = others.filter((tab) => tab.panes.length);
  return { tabs: left, index: left.indexOf(opened) };
}

/** The tabs without a terminal. @param {Tab[]} tabs @param {string} id @returns {Tab[]} */
export function without(tabs, id) {
  return tabs
    .map((tab) => ({ ...tab, panes: tab.panes.filter((each) => each !== id) }))
    .filter((tab) => tab.panes.length);
}
