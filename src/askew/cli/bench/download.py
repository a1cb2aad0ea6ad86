"""`askew bench download`: a data set's published files, for those who have a network."""

from pathlib import Path

from askew.cli.terminal import err, speaking
from askew.errors import InvalidInput
from askew.images import printable


def fetch(name: str, data: Path | None, *, quiet: bool) -> None:
    """Fetch into the data folder."""
    from askew.datasets.download import download

    if data is None:
        raise InvalidInput("a download needs a folder: pass --data FOLDER or set ASKEW_DATA")
    with speaking(quiet):
        folder = download(name, data)
    if not quiet:
        err.print(f"{printable(name)} is in {printable(str(folder))}", highlight=False, markup=False, soft_wrap=True)
