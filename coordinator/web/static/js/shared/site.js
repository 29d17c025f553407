// Where things are. All addresses are relative to where this module came from, so that the page works under
// any path prefix (an agent's proxy, a platform's /proxy/8000/).

/** The coordinator's root: this file lies in <root>/static/<version>/js/shared/. */
export const ROOT = new URL("../../../../", import.meta.url);

/** An address under the root. */
export function at(path) {
  return new URL(path, ROOT);
}

/** An address of the API; `query` leaves out what is null or undefined. */
export function api(path, query = {}) {
  const url = at(`api/v1/${path}`);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, String(value));
  }
  return url;
}

/** The page of a job. */
export function jobPage(id) {
  return at(`jobs/${encodeURIComponent(id)}`).pathname;
}

/** The id in this page's own address, `<root>/jobs/<id>`. */
export function jobIdHere() {
  return decodeURIComponent(location.pathname.slice(ROOT.pathname.length).replace(/^jobs\//, ""));
}

/** Go and sign in, and come back here afterwards. */
export function signIn() {
  const url = at("sign-in");
  const here = location.pathname.slice(ROOT.pathname.length);
  if (here) url.searchParams.set("next", here);
  location.replace(url);
}

/** Where to go after signing in: only a page of ours, whatever the address bar says. */
export function after(next) {
  return /^jobs\/[A-Za-z0-9_-]{1,64}$/.test(next ?? "") ? at(next) : ROOT;
}
