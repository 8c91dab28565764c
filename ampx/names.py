"""Names that users type, made fit for a path and a shell."""

import hashlib

_LENGTH = 150  # bytes; file systems stop at 255


def safe_name(text: str) -> str:
    """`text` where it is fit as one component of a path and needs no quotes anywhere; else a cleaned form.

    A cleaned form ends in a hash of the text, so that two texts do not share a folder.
    """
    if not text.strip():
        raise ValueError(f"name={text!r}: is empty; give it a letter or a digit")
    kept = "".join(char if char.isalnum() or char in "_.+@-" else "_" for char in text)
    kept = kept.lstrip(".-")
    if kept == text and len(kept.encode()) <= _LENGTH:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    room = _LENGTH - len(digest) - 1
    return f"{kept.encode()[:room].decode(errors='ignore')}-{digest}".lstrip("-")
