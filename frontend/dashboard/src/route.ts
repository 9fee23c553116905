// Addresses of the views: the part behind the #, as #/run/NAME/rollouts?status=failed. All that a view shows is in it,
// so that it can be sent to somebody.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  path: string[];
  query: URLSearchParams;
}

export function current(): Route {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(safeDecode), query: new URLSearchParams(query ?? "") };
}

function safeDecode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function address(path: (string | number)[], query: Record<string, string | number | null | undefined> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return "#/" + path.map((part) => encodeURIComponent(String(part))).join("/") + (text ? "?" + text : "");
}

export function useRoute(): Route {
  const [route, setRoute] = useState(current);
  useEffect(() => {
    const heard = () => setRoute(current());
    addEventListener("hashchange", heard);
    return () => removeEventListener("hashchange", heard);
  }, []);
  return route;
}

/** Replace single values of the query of this address, without a new entry in the history. */
export function replaceQuery(changes: Record<string, string | number | null>): void {
  const { path, query } = current();
  const values: Record<string, string | number | null> = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", address(path, values));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
