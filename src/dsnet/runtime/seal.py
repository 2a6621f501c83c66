"""The seal of an ONNX file: the SHA-256 of all bytes before it, as the last entry of the file's metadata.

A file is a sequence of protobuf fields, so an entry of the metadata can be appended to it. The seal is that entry, and
it has a fixed length. Whoever reads the last bytes of a file can therefore verify the others, without a parser, and
every runtime finds the digest in the metadata like any other entry.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from dsnet.errors import CheckpointError
from dsnet.files import write_whole
from dsnet.runtime.engine import Engine, Session

KEY = "dsnet.sha256"
HEX = 64  # digits of a SHA-256
ATTEMPTS = 10


def field(tag: int, content: bytes) -> bytes:
    """A protobuf field of fewer than 128 bytes."""
    return bytes([tag, len(content)]) + content


BLANK = field(0x72, field(0x0A, KEY.encode()) + field(0x12, b"0" * HEX))  # metadata_props { key, value }
START = BLANK[:-HEX]


def sealed(data: bytes) -> bytes:
    """The bytes of an ONNX file with its seal. An older seal at their end is replaced."""
    data = data[: -len(BLANK)] if data[-len(BLANK) : -HEX] == START else data
    return data + START + hashlib.sha256(data).hexdigest().encode()


def seal(file: str | Path) -> None:
    """Seal a file that was edited on purpose, so that it can be opened again."""
    write_whole(Path(file), sealed(Path(file).read_bytes()))


def checked(file: Path) -> str:
    """The digest of a sealed file, which must match its content; empty if the file has no seal."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(size - len(BLANK), 0))
            start, stated = stream.read(len(START)), stream.read(HEX)
            if start != START:
                return ""
            stream.seek(0)
            found, left = hashlib.sha256(), size - len(BLANK)
            while left and (piece := stream.read(min(left, 1 << 20))):
                found.update(piece)
                left -= len(piece)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})" if file.is_file() else "does not exist"
        raise CheckpointError(f"{file} {reason}; give an ONNX file or a bundle that `dsnet export` wrote") from None
    if found.hexdigest().encode() != stated:
        raise CheckpointError(
            f"{file} does not match its digest, it was damaged or edited; copy it again or export it again"
        )
    return stated.decode()


def open_checked(engine: Engine, file: Path, threads: int) -> tuple[Session, str]:
    """Open a file whose digest matches. Returns the digest, too; it is empty if the file has no seal."""
    for _ in range(ATTEMPTS):
        stated, session = checked(file), engine.open(file, threads)
        if session.get_modelmeta().custom_metadata_map.get(KEY, "") == stated:
            return session, stated
        # It was replaced between the two.
    raise CheckpointError(f"{file} holds two digests, or is replaced again and again; export it again")
