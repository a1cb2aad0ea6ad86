"""Names of images as people read them."""


def printable(name: str) -> str:
    r"""One line of valid UTF-8 for any file name or message.

    Bytes that are not UTF-8 appear as `\xff`, line breaks as `\n`, and invisible or right-to-left marks as `\u202e`, so
    that a hostile name can neither break a table nor repaint a terminal.
    """
    return name if name.isprintable() else "".join(map(_visible, name))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # how Python carries a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
