// Addresses: each view has one below `#/`, which can be kept, sent and gone back to.

import { useLayoutEffect, useState } from "../vendor/htm-preact.js";

/** @typedef {{view: string, path: string[], query: URLSearchParams}} Route */

/** The address of a view, such as `#/hub/default/web%201`. @param {string} view @param {...string} path */
export function address(view, ...path) {
  return `#/${[view, ...path].map(encodeURIComponent).join("/")}`;
}

/** Goes to an address; `replace` leaves no step to go back to. @param {string} hash @param {{replace?: boolean}} [options] */
export function go(hash, { replace = false } = {}) {
  if (!replace) location.hash = hash;
  else {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** Where the page is. @returns {Route} */
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view, ...rest] = path.split("/").map(decoded);
  return { view, path: rest.filter((segment) => segment !== ""), query: new URLSearchParams(query) };
}

/** @param {string} segment */
function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    // Typed by hand: a percent sign that stands for itself.
    return segment;
  }
}

/** The route, now and whenever it changes. */
export function useRoute() {
  const [now, set] = useState(route);
  // Not by useEffect, here and wherever a component listens: it runs some frames later, and what happens until then would
  // be lost.
  useLayoutEffect(() => {
    const changed = () => set(route());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return now;
}
