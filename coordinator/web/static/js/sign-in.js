// The sign-in page: a token becomes a session (an HttpOnly cookie), the token itself is kept nowhere.

import { send } from "./shared/api.js";
import { after } from "./shared/site.js";
import { say, showLink, top } from "./shared/top.js";
import { fill } from "./shared/dom.js";

top();
showLink("ended");
document.getElementById("link").hidden = true;

const form = document.getElementById("sign-in");
const said = document.getElementById("sign-in-said");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = form.elements.namedItem("token");
  const button = form.querySelector("button");
  button.disabled = true;
  fill(said);
  try {
    await send("session", { token: field.value.trim() }, { stay: true });
    location.replace(after(new URLSearchParams(location.search).get("next")));
  } catch (problem) {
    fill(
      said,
      problem.status === 401
        ? "This token is not known here."
        : [problem.message, problem.hint].filter(Boolean).join(" "),
    );
    field.select();
  } finally {
    button.disabled = false;
  }
});

say(null);
