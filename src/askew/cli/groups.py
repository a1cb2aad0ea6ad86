"""`--group-by`: which images belong together, from their paths."""

import re
from pathlib import Path

from askew.errors import InvalidInput
from askew.images import ImageSource, printable


def groups_by(source: ImageSource, group_by: str) -> list[str]:
    """The group of each image: its folder, or what the expression matches in its path."""
    if group_by == "folder":
        return [str(Path(name).parent) for name in source.names]
    try:
        expression = re.compile(group_by)
    except re.error as error:
        raise InvalidInput(f"--group-by {group_by!r} is not a regular expression: {error}") from error
    groups = []
    for name in source.names:
        match = expression.search(name)
        if match is None:
            raise InvalidInput(f"--group-by {group_by!r} matches nothing in {printable(name)}")
        groups.append(match.group(1) if expression.groups else match.group())
    return groups
