"""Names of images as people read them."""

import os


def printable(name: str) -> str:
    r"""One line of valid UTF-8 for any file name or message.

    Bytes that are not UTF-8 appear as `\xff`, line breaks as `\n`, and invisible or right-to-left marks as `\u202e`, so
    that a hostile name can neither break a table nor repaint a terminal. Where anything is escaped, so are backslashes;
    what has nothing to escape comes back as it is, so that a message may pass through here twice.
    """
    return name if name.isprintable() else "".join(map(_visible, name))


def unmistakable(name: str) -> str:
    r"""`printable`, but no two names come out alike: where a name may hold a backslash, it is always `\\`."""
    return printable(name) if os.sep == "\\" else "".join(map(_visible, name))


def _visible(character: str) -> str:
    if character == "\\":
        return r"\\"
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # how Python carries a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if "\x80" <= character <= "\xff":  # not `\x85`, which is the byte
        return f"\\u{ord(character):04x}"
    return character.encode("unicode_escape").decode("ascii")
