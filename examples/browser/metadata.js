// Reads the metadata of an ONNX file, which ONNX Runtime for the web does not give: class names, widths, budgets.

const METADATA = 14; // field of an ONNX model that holds its metadata; keys are field 1 of an entry, values field 2

// The fields of a protobuf message: number and content, for those that have a length.
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0, scale = 1;
    for (;;) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
  };
  while (at < bytes.length) {
    const tag = varint(), kind = tag % 8;
    if (kind === 0) varint();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      const length = varint();
      yield [Math.floor(tag / 8), bytes.subarray(at, at + length)];
      at += length;
    } else throw new Error("this is not an ONNX file");
  }
}

export function metadata(bytes) {
  const text = new TextDecoder(), entries = {};
  for (const [number, content] of fields(bytes)) {
    if (number !== METADATA) continue;
    const entry = Object.fromEntries(fields(content));
    entries[text.decode(entry[1])] = text.decode(entry[2]);
  }
  return entries;
}
