"""The one file that uses the network: the published files of a data set, from where they were published.

A transfer that is cut off goes on where it stopped. A file gets its name only when it has the published size and
checksum; an archive is unpacked beside its place and moved there whole, and only where nothing is. Servers are not
trusted with more than that.
"""

import hashlib
import http.client
import os
import re
import secrets
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, Final
from urllib.parse import urlsplit

from askew import __version__
from askew.datasets.cifar import CIFAR10_MD5, CIFAR100_MD5
from askew.errors import BadFile, InvalidInput
from askew.images import printable

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two processes from fetching at once there
    fcntl = None  # type: ignore[assignment]

Watch = Callable[[int, int], None]

_CHUNK = 256 * 1024
_PATIENCE_SECONDS = 60.0
_ATTEMPTS = 5
_LARGEST_UNPACKED = 4 * 2**30


@dataclass(frozen=True)
class Remote:
    """One published file: its name, its size, its checksum, and where it is, the original place first."""

    name: str
    size: int
    checksum: str  # such as md5:0123...
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """What a set consists of; archives hold `folder`, of which only the members that match are unpacked.

    A folder holds all of the set if it has every file of `md5`, and of each pattern of `counts` so many.
    """

    folder: str
    files: tuple[Remote, ...]
    members: str = ""
    md5: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


def _remote(name: str, size: int, md5: str, *places: str) -> Remote:
    return Remote(name, size, f"md5:{md5}", tuple(f"{place}/{name}" for place in places))


_LECUN = ("http://yann.lecun.com/exdb/mnist", "https://ossci-datasets.s3.amazonaws.com/mnist")
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz"
_MICROSOFT = "https://download.microsoft.com/download/3/E/1/3E1C3F21-ECDB-4869-8368-6DEBA77B919F"
_STANFORD = "http://cs231n.stanford.edu"

PUBLISHED: Final = {
    # Checksums: github.com/pytorch/vision, torchvision/datasets/mnist.py, which also names the mirror.
    "mnist": Published(
        "mnist",
        (
            _remote("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", *_LECUN),
            _remote("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432", *_LECUN),
            _remote("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3", *_LECUN),
            _remote("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c", *_LECUN),
        ),
    ),
    # Checksums: github.com/zalandoresearch/fashion-mnist, README.md.
    "fashion-mnist": Published(
        "fashion-mnist",
        (
            _remote("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", _ZALANDO),
            _remote("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe", _ZALANDO),
            _remote("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79", _ZALANDO),
            _remote("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310", _ZALANDO),
        ),
    ),
    # Checksums: www.cs.toronto.edu/~kriz/cifar.html.
    "cifar10": Published(
        "cifar-10-batches-py",
        (_remote("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a", _KRIZHEVSKY),),
        r"(data_batch_[1-5]|test_batch|batches\.meta)",
        md5=CIFAR10_MD5,
    ),
    "cifar100": Published(
        "cifar-100-python",
        (_remote("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85", _KRIZHEVSKY),),
        r"(train|test|meta)",
        md5=CIFAR100_MD5,
    ),
    # Checksum: github.com/gomlx/gomlx, examples/dogsvscats.
    "cats-vs-dogs": Published(
        "PetImages",
        (
            Remote(
                "kagglecatsanddogs_5340.zip",
                824_887_076,
                "sha256:b7974bd00a84a99921f36ee4403f089853777b5ae8d151c76a86e64900334af9",
                (f"{_MICROSOFT}/kagglecatsanddogs_5340.zip",),
            ),
        ),
        r"(Cat|Dog)/[0-9]+\.jpg",
        counts={"Cat/*.jpg": 12_500, "Dog/*.jpg": 12_500},
    ),
    # Checksum: github.com/ContinualAI/avalanche, avalanche/benchmarks/datasets/tiny_imagenet/tiny_imagenet.py.
    "tiny-imagenet": Published(
        "tiny-imagenet-200",
        (_remote("tiny-imagenet-200.zip", 248_100_043, "90528d7ca1a48142e341f4ef8d21d0de", _STANFORD),),
        r"(test|val)/images/\w+\.JPEG",
        counts={"test/images/*.JPEG": 10_000},
    ),
}


def download(name: str, root: str | os.PathLike[str], watch: Watch | None = None) -> Path:
    """The folder below `root` that now has the set's published files; what is there already is not fetched again.

    `watch(done, total)` is told of the bytes fetched. Whatever goes wrong is one `BadFile`, and what has arrived waits
    in a `.partial` file for the next time. A folder that has part of an archive is left as it is and refused: nobody
    knows whose files those are and which of them are whole.
    """
    if name not in PUBLISHED:
        raise InvalidInput(f"nothing is fetched for {name!r}; data sets with files are {', '.join(PUBLISHED)}")
    published = PUBLISHED[name]
    target = Path(root, published.folder)
    try:
        if published.members and os.path.lexists(target) and not _is_empty(target):
            if fault := _fault(target, published):
                raise BadFile(f"{printable(str(target))} {fault}; move it away and run this again")
            return target
        place = Path(root) if published.members else target
        place.mkdir(parents=True, exist_ok=True)
        before, total = 0, sum(file.size for file in published.files)
        for file in published.files:
            _fetch(file, place, _counted(watch, before, total))
            before += file.size
        if published.members:
            _unpack(place / published.files[0].name, target, published.members)
    except OSError as problem:
        raise BadFile(f"{printable(str(target))} cannot be written: {_reason(problem)}") from problem
    return target


def _is_empty(target: Path) -> bool:
    return target.is_dir() and not target.is_symlink() and not any(target.iterdir())


def _fault(target: Path, published: Published) -> str:
    """What keeps the folder from being the whole set, or nothing."""
    if not target.is_dir():
        return "is no folder"
    for name, md5 in published.md5.items():
        if not (target / name).is_file():
            return f"is there, but has no {name}"
        if not _matches(target / name, f"md5:{md5}"):
            return f"is there, but its {name} is not the published file"
    for pattern, count in published.counts.items():
        found = sum(path.is_file() for path in target.glob(pattern))
        if found < count:
            return f"is there, but has {found:,} of {count:,} files {pattern}"
    return ""


def _counted(watch: Watch | None, before: int, total: int) -> Callable[[int], None]:
    """What to tell of one file's bytes, as a part of the whole."""
    return lambda fetched: None if watch is None else watch(before + fetched, total)


def _fetch(remote: Remote, place: Path, watch: Callable[[int], None]) -> None:
    """Put the file into the folder, unless it is there."""
    target = place / remote.name
    if target.is_file() and target.stat().st_size == remote.size and _matches(target, remote.checksum):
        watch(remote.size)
        return
    partial = place / f".{remote.name}.partial"
    with _reserved(partial) as stream:
        reasons = []
        for url in remote.urls:
            if not (reason := _transfer(url, remote.size, stream, watch)):
                break
            reasons.append(f"{url}: {reason}")
            stream.seek(0)  # what came from there may have been anything
        else:
            raise BadFile(f"{remote.name} cannot be fetched; {printable('; '.join(reasons))}")
        stream.flush()
        os.fsync(stream.fileno())
        if not _matches(partial, remote.checksum):
            partial.unlink()
            raise BadFile(
                f"{remote.name} from {url} does not have the published checksum, {remote.checksum}, and was removed; "
                "try again later"
            )
        partial.replace(target)


@contextmanager
def _reserved(partial: Path) -> Iterator[BinaryIO]:
    """The partial file, opened at its end, and kept from any other process that fetches the same."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(partial, flags, 0o666), "r+b") as stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = os.path.samestat(os.fstat(stream.fileno()), partial.stat())
            except OSError:
                mine = False
            if not mine:  # held by the other process, or finished and renamed by it just now
                raise BadFile(f"{printable(str(partial))} is being fetched by another process; let it finish")
        stream.seek(0, os.SEEK_END)
        yield stream


def _transfer(url: str, size: int, stream: BinaryIO, watch: Callable[[int], None]) -> str:
    """Nothing when the stream has all of the file, or else the reason why it has not."""
    reason = ""
    for _ in range(_ATTEMPTS):
        start = stream.tell()
        if start > size:  # it was of another file
            start = stream.seek(0)
        try:
            for position, piece in _pieces(url, start, size):
                _put(stream, position, piece)
                watch(position + len(piece))
        except urllib.error.HTTPError as problem:
            problem.close()
            reason = f"HTTP {problem.code} {problem.reason}"
            if problem.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or start == 0:
                return reason
            stream.seek(0)
        # Whatever a server or the way to it can do wrong; a disk's errors are `BadFile` already.
        except (OSError, http.client.HTTPException, ValueError) as problem:
            reason = _reason(problem)
        if stream.tell() == size:
            return ""
    stopped = f"it stopped at {stream.tell():,} of {size:,} bytes"
    return f"{stopped}{f' ({reason})' if reason else ''}; run it again to go on from there"


def _pieces(url: str, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of the file and the place of each, from `start` on, or from 0 where the server has only whole files."""
    headers = {"User-Agent": f"askew/{__version__}", "Accept-Encoding": "identity"}
    if start == size:
        return
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  (the addresses are the ones above)
    with _opener().open(request, timeout=_PATIENCE_SECONDS) as answer:
        position = 0
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            position = start
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise ValueError("the server sent another part than it was asked for")
        length = answer.length
        if length is not None and position + length != size:
            raise ValueError(f"the file there has {position + length:,} bytes, and {size:,} were published")
        while position < size and (piece := answer.read(min(_CHUNK, size - position))):
            yield position, piece
            position += len(piece)


def _put(stream: BinaryIO, position: int, piece: bytes) -> None:
    try:
        stream.seek(position)
        stream.write(piece)
        stream.truncate()
    except OSError as problem:
        raise BadFile(f"the disk takes no more: {_reason(problem)}; make room and run it again") from problem


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to HTTP or HTTPS, and never from the safe one to the other or to anything else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in allowed:
            raise urllib.error.HTTPError(newurl, code, f"redirection to {newurl[:80]} is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """What opens addresses: only HTTP and HTTPS, not the files and FTP that urllib opens as well."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


def _matches(path: Path, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest() == expected


def _unpack(archive: Path, target: Path, members: str) -> None:
    """Put the matching members of the archive's folder into `target`, all or none, and remove the archive."""
    wanted = re.compile(f"{re.escape(target.name)}/(?:{members})")
    scratch = target.with_name(f".askew-{secrets.token_hex(8)}.partial")
    room = _LARGEST_UNPACKED
    try:
        for name, size, stream in _members(archive, wanted):
            room -= size
            if room < 0:
                raise ValueError(f"it holds more than {_LARGEST_UNPACKED:,} bytes")
            path = scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as unpacked:
                shutil.copyfileobj(stream, unpacked)
        if not scratch.exists():
            raise ValueError("it holds none of the set's files")
        with suppress(FileNotFoundError):
            target.rmdir()  # it was empty; Windows does not rename to what is there
        (scratch / target.name).rename(target)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError) as problem:
        raise BadFile(f"{printable(str(archive))} cannot be unpacked: {_reason(problem)}") from problem
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    archive.unlink()


def _members(archive: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """The name, the size and the content of every regular file in the archive whose name matches in full."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if wanted.fullmatch(info.filename):
                    with zipped.open(info) as stream:
                        yield info.filename, info.file_size, stream
        return
    with tarfile.open(archive, "r|gz") as tarred:
        for member in tarred:
            if member.isfile() and wanted.fullmatch(member.name) and (content := tarred.extractfile(member)):
                with content:
                    yield member.name, member.size, content


def _reason(problem: Exception) -> str:
    cause = problem.reason if isinstance(problem, urllib.error.URLError) else problem
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return printable(text)[:200] or type(problem).__name__
