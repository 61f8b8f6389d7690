"use strict";
/** Version of the commands and requests that this extension speaks. */
const PROTOCOL = 1;

/** Return why a server cannot be talked with; "" if it can. */
function refusalOf(initializeResult, python) {
  const theirs = initializeResult?.capabilities?.experimental?.roller?.protocol;
  if (theirs === PROTOCOL) return "";
  const got = theirs === undefined ? "a server without one" : `protocol ${theirs}`;
  const remedy = theirs > PROTOCOL ? "Install a newer extension" : "Install a newer roller there";
  return `roller: this extension speaks protocol ${PROTOCOL}, expected the same of ${python}, got ${got}. ${remedy}.`;
}

module.exports = { PROTOCOL, refusalOf };
