// The page for an address at which there is none: nothing to ask for, only the bar at the top works.

import { top } from "./shared/top.js";

top();
