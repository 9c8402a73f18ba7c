// Server-sent events from a fetch body. EventSource cannot send an Authorization header.

/** Yields an array of `{id, type, data}` for each piece of the body; an empty one is a sign of life. */
export async function* readFrames(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder(); // kept between pieces: a character may be cut in two
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      yield blocks.map(parseFrame).filter((frame) => frame !== null);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseFrame(block) {
  const frame = { id: null, type: "message", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment
    const value = line.slice(colon + 1).replace(/^ /, "");
    const name = line.slice(0, colon);
    if (name === "id") frame.id = Number(value);
    else if (name === "event") frame.type = value;
    else if (name === "data") frame.data += value;
  }
  return frame.data === "" ? null : frame;
}
