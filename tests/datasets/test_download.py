import dataclasses
import gzip
import hashlib
import http.server
import io
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from askew.cli import main, terminal
from askew.cli.bench.download import _teller
from askew.datasets import download as module
from askew.datasets.download import PUBLISHED, Published, Remote, download
from askew.errors import BadFile, InvalidInput

CONTENT = np.random.default_rng(0).bytes(600_000)


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; each request is answered by the next of `moods`, the last of them for ever."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.moods = ["good"]
        self.requests = []  # (path, where it was asked to begin)

    def handle_error(self, *_):
        """Nothing: that the other side hangs up is part of the tests."""

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        asked = re.match(r"bytes=(\d+)-$", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.server.requests.append((self.path, start))
        mood = self.server.moods.pop(0) if len(self.server.moods) > 1 else self.server.moods[0]
        content = self.server.files.get(self.path)
        if mood.startswith("to "):
            self.send_response(302)
            self.send_header("Location", mood.removeprefix("to "))
            self.end_headers()
        elif content is None or mood == "gone":
            self.send_error(404, "Not\x1b[2J Found")
        elif mood == "ranges unsatisfiable" and asked:
            self.send_error(416)
        else:
            self.answer(mood, content, start if asked and mood not in ("whole", "page") else None)

    def answer(self, mood, content, start):
        if mood == "page":  # what a vanished host may say to everything, without its length
            content, mood = b"<html>moved</html>", "no length"
        part = content[start or 0 :]
        self.send_response(200 if start is None else 206)
        if start is not None:
            if mood == "another part":
                start, part = 7, content[7 : 7 + len(part)]
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        if mood != "no length":
            self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        sent = {"cut": len(content) // 3, "drip": len(content) // 10}.get(mood, len(part))
        self.wfile.write(part[:sent])
        self.close_connection = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


@pytest.fixture
def publish(server, monkeypatch):
    """Makes the set `made` of one file, or of one archive and the pattern of its members."""

    def make(content=CONTENT, name="file.gz", members="", checksum=None, size=None, places=("",), **whole):
        server.files[f"/{name}"] = content
        checksum = checksum or f"sha256:{hashlib.sha256(content).hexdigest()}"
        urls = tuple(f"{place or server.address}/{name}" for place in places)
        remote = Remote(name, len(content) if size is None else size, checksum, urls)
        monkeypatch.setitem(PUBLISHED, "made", Published("made", (remote,), members, **whole))

    return make


def left_over(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_a_file_arrives_whole_and_every_byte_is_told(server, publish, tmp_path):
    publish()
    told = []
    folder = download("made", tmp_path / "new" / "root", lambda done, total: told.append((done, total)))
    assert folder == tmp_path / "new" / "root" / "made"
    assert (folder / "file.gz").read_bytes() == CONTENT
    assert told == sorted(told)
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert len(told) > 2
    assert left_over(tmp_path) == ["new/root/made/file.gz"]


def test_what_is_there_is_not_fetched_again_and_what_is_damaged_is(server, publish, tmp_path):
    publish()
    path = download("made", tmp_path) / "file.gz"
    told = []
    download("made", tmp_path, lambda done, total: told.append((done, total)))
    assert len(server.requests) == 1
    assert told == [(len(CONTENT), len(CONTENT))]
    path.write_bytes(CONTENT[:-1] + b"?")
    download("made", tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_transfer_that_is_cut_goes_on_where_it_stopped(server, publish, tmp_path):
    publish()
    server.moods = ["cut", "cut", "good"]
    assert (download("made", tmp_path) / "file.gz").read_bytes() == CONTENT
    assert [start for _, start in server.requests] == [0, 200_000, 400_000]


def test_a_server_that_keeps_failing_is_given_up_and_resumed_the_next_time(server, publish, tmp_path):
    publish()
    server.moods = ["drip"]
    with pytest.raises(
        BadFile, match=r"file\.gz: it stopped at 300,000 of 600,000 bytes; run it again to go on from th"
    ):
        download("made", tmp_path)
    assert len(server.requests) == 5
    server.moods = ["good"]
    assert (download("made", tmp_path) / "file.gz").read_bytes() == CONTENT
    assert server.requests[5:] == [("/file.gz", 300_000)]


def test_a_server_that_says_no_is_not_asked_again(server, publish, tmp_path):
    publish()
    server.moods = ["cut", "gone"]
    with pytest.raises(BadFile, match=r"file\.gz cannot be fetched; http://.*: HTTP 404 Not\\x1b\[2J Found$"):
        download("made", tmp_path)
    assert [start for _, start in server.requests] == [0, 200_000]
    assert left_over(tmp_path) == ["made/.file.gz.partial"]
    server.moods = ["good"]
    assert (download("made", tmp_path) / "file.gz").read_bytes() == CONTENT
    assert server.requests[2:] == [("/file.gz", 200_000)]
    assert left_over(tmp_path) == ["made/file.gz"]


def test_ctrl_c_keeps_what_has_arrived(server, publish, tmp_path):
    publish()

    def press(done, _):
        if done > 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("made", tmp_path, press)
    download("made", tmp_path)
    assert server.requests[1][1] > 300_000


def test_a_killed_process_leaves_what_the_next_one_goes_on_with(server, publish, tmp_path):
    publish()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / ".file.gz.partial").write_bytes(CONTENT[:123_456])
    assert (download("made", tmp_path) / "file.gz").read_bytes() == CONTENT
    assert server.requests == [("/file.gz", 123_456)]


@pytest.mark.parametrize("mood", ["whole", "ranges unsatisfiable", "another part", "no length"])
@pytest.mark.parametrize("start", [0, 123_456])
def test_servers_that_know_no_ranges_are_served_from_the_start(server, publish, tmp_path, mood, start):
    publish()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / ".file.gz.partial").write_bytes(b"?" * start if mood == "whole" else CONTENT[:start])
    server.moods = [mood, "good"]
    assert (download("made", tmp_path) / "file.gz").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [len(CONTENT), len(CONTENT) + 1])
def test_a_partial_file_of_something_else_does_no_lasting_harm(server, publish, tmp_path, length):
    publish()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / ".file.gz.partial").write_bytes(b"?" * length)
    if length == len(CONTENT):
        with pytest.raises(BadFile, match="does not have the published checksum"):
            download("made", tmp_path)
    assert (download("made", tmp_path) / "file.gz").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server, publish, tmp_path):
    publish(checksum="md5:00")
    with pytest.raises(
        BadFile, match=r"does not have the published checksum, md5:00, and was removed; try again later"
    ):
        download("made", tmp_path)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(("size", "mood"), [(1000, "good"), (10**9, "good"), (1000, "no length")])
def test_a_file_of_another_size_is_refused_without_storing_more(server, publish, tmp_path, size, mood):
    publish(size=size)
    server.moods = [mood]
    with pytest.raises(
        BadFile, match=r"600,000 bytes, and [0-9,]+ were published|does not have the published checksum"
    ):
        download("made", tmp_path)
    assert sum((tmp_path / name).stat().st_size for name in left_over(tmp_path)) <= 1000


@pytest.mark.parametrize("mood", ["gone", "page"])
def test_a_mirror_serves_where_the_original_is_gone(server, publish, tmp_path, mood):
    publish(places=("http://127.0.0.1:9", "", ""))
    server.moods = [*[mood] * (1 if mood == "gone" else 5), "good"]
    assert (download("made", tmp_path) / "file.gz").read_bytes() == CONTENT


def test_an_unreachable_server_is_one_line(server, publish, tmp_path):
    publish(places=("http://127.0.0.1:9",))
    with pytest.raises(
        BadFile, match=r"file\.gz cannot be fetched; http://127\.0\.0\.1:9/file\.gz: .*Connection refused"
    ):
        download("made", tmp_path)


def test_redirects_are_followed_to_the_web_and_nowhere_else(server, publish, tmp_path):
    publish()
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    for place in (f"file://{secret}", "ftp://127.0.0.1/file.gz", "data:,x", "gopher://127.0.0.1/"):
        server.moods = [f"to {place}"]
        with pytest.raises(BadFile, match="HTTP 302"):
            download("made", tmp_path / "root")
    server.files["/elsewhere"] = CONTENT
    server.moods = [f"to {server.address}/elsewhere", "good"]
    assert (download("made", tmp_path / "root") / "file.gz").read_bytes() == CONTENT


def test_a_safe_address_never_leads_to_an_unsafe_one():
    redirects = module._Redirects()
    request = module.urllib.request.Request("https://example.org/a")
    with pytest.raises(module.urllib.error.HTTPError, match="is not followed") as caught:
        redirects.redirect_request(request, io.BytesIO(), 302, "Found", {}, "http://example.org/a")
    caught.value.close()
    assert redirects.redirect_request(request, io.BytesIO(), 302, "Found", {}, "https://example.org/b") is not None


def test_circles_of_redirects_end(server, publish, tmp_path):
    publish()
    server.moods = [f"to {server.address}/file.gz"]
    with pytest.raises(BadFile, match="HTTP 302"):
        download("made", tmp_path)
    assert len(server.requests) < 50


def test_two_processes_do_not_write_into_each_others_file(server, publish, tmp_path):
    publish()
    (tmp_path / "made").mkdir()
    with (
        module._reserved(tmp_path / "made" / ".file.gz.partial"),
        pytest.raises(BadFile, match="is being fetched by another process"),
    ):
        download("made", tmp_path)
    download("made", tmp_path)


def test_a_full_disk_is_one_line(server, publish, tmp_path, monkeypatch):
    publish()

    @contextmanager
    def full(partial):
        with Path("/dev/full").open("r+b", buffering=0) as stream:
            yield stream

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(module, "_reserved", full)
    with pytest.raises(BadFile, match=r"the disk takes no more: No space left on device; make room"):
        download("made", tmp_path)


def test_a_place_that_is_no_folder_is_one_line(server, publish, tmp_path):
    publish()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadFile, match="cannot be written"):
        download("made", tmp_path / "file")


MEMBERS = {"made/a/1.jpg": b"one", "made/b/2.jpg": b"two" * 1000}
FOREIGN = {"made/a/../../evil": b"x", "/etc/evil": b"x", "made/c": b"x", "other/a/1.jpg": b"x", "made/a/1.jpg/x": b"x"}


def tar(members, link=False):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        if link:
            entry = tarfile.TarInfo("made/b/3.jpg")
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry)
    return file.getvalue()


def zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"), [("x.tar.gz", tar(MEMBERS | FOREIGN, link=True)), ("x.zip", zipped(MEMBERS | FOREIGN))]
)
def test_of_an_archive_only_the_sets_files_are_unpacked(server, publish, tmp_path, name, content):
    publish(content, name, members=r"(a|b)/[0-9]+\.jpg")
    assert download("made", tmp_path / "root") == tmp_path / "root" / "made"
    assert left_over(tmp_path) == ["root/made/a/1.jpg", "root/made/b/2.jpg"]
    assert (tmp_path / "root" / "made" / "b" / "2.jpg").read_bytes() == MEMBERS["made/b/2.jpg"]
    download("made", tmp_path / "root")
    assert len(server.requests) == 1


WHOLE = {"md5": {"a/1.jpg": hashlib.md5(b"one").hexdigest()}, "counts": {"b/*.jpg": 1}}


@pytest.fixture
def archive(publish):
    """The set `made` as an archive, of which a folder must have both files."""
    publish(tar(MEMBERS), "x.tar.gz", members=r"(a|b)/[0-9]+\.jpg", **WHOLE)


def test_an_empty_folder_gets_the_set(server, archive, tmp_path):
    (tmp_path / "made").mkdir()
    for _ in range(2):
        download("made", tmp_path)
        assert left_over(tmp_path) == sorted(MEMBERS)
    assert len(server.requests) == 1


FILES = {"a": "a/1.jpg", "b": "b/2.jpg", "notes": "notes.txt"}


def elsewhere(folder):
    folder.symlink_to("nowhere")


def a_file(folder):
    folder.write_bytes(b"")


def holding(**contents):
    """Makes a folder with those of the files that are given a content."""

    def make(folder):
        for name, content in contents.items():
            path = folder / FILES[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return make


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (elsewhere, "is no folder"),
        (a_file, "is no folder"),
        (holding(notes=b"mine"), "is there, but has no a/1.jpg"),
        (holding(b=b"two"), "is there, but has no a/1.jpg"),
        (holding(a=b"one"), "is there, but has 0 of 1 files b/*.jpg"),
        (holding(a=b"on", b=b"two"), "is there, but its a/1.jpg is not the published file"),
    ],
)
def test_what_is_there_and_not_the_whole_set_is_left_alone_and_refused(server, archive, tmp_path, make, reason):
    make(tmp_path / "made")
    before = left_over(tmp_path)
    with pytest.raises(BadFile) as caught:
        download("made", tmp_path)
    assert str(caught.value) == f"{tmp_path / 'made'} {reason}; move it away and run this again"
    assert left_over(tmp_path) == before
    assert not server.requests


def test_what_comes_into_an_empty_folder_meanwhile_is_not_lost(server, archive, tmp_path):
    (tmp_path / "made").mkdir()

    def meanwhile(*_):
        (tmp_path / "made" / "mine").write_bytes(b"")

    with pytest.raises(BadFile, match="not empty"):
        download("made", tmp_path, meanwhile)
    assert left_over(tmp_path) == ["made/mine", "x.tar.gz"]


@pytest.mark.parametrize("name", [name for name, published in PUBLISHED.items() if published.members])
def test_no_set_is_taken_to_be_there_because_its_folder_is(name, server, monkeypatch, tmp_path):
    gone = Remote("gone.zip", 1, "md5:00", (f"{server.address}/gone.zip",))
    monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(PUBLISHED[name], files=(gone,)))
    folder = tmp_path / PUBLISHED[name].folder
    folder.mkdir()
    with pytest.raises(BadFile, match="HTTP 404"):
        download(name, tmp_path)
    (folder / "meta").write_bytes(b"")
    with pytest.raises(BadFile, match=r"is there, but has .*; move it away and run this again"):
        download(name, tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tar.gz", tar(FOREIGN)),
        ("x.zip", zipped(FOREIGN)),
        ("x.zip", b"no zip"),
        ("x.tar.gz", b"no tar"),
        ("x.tar.gz", gzip.compress(b"no tar" * 1000)),
        ("x.tar.gz", tar({"made/a/1.jpg": CONTENT})[:-300_000]),
        ("x.zip", zipped({"made/a/1.jpg": b"content"}).replace(b"content", b"changed")),
    ],
)
def test_an_archive_that_cannot_be_unpacked_leaves_no_half_set(server, publish, tmp_path, name, content):
    publish(content, name, members=r"(a|b)/[0-9]+\.jpg")
    with pytest.raises(BadFile, match=r"cannot be (unpacked|written)"):
        download("made", tmp_path)
    assert left_over(tmp_path) == [name]  # whose checksum is right: it is not fetched again


def test_an_archive_that_would_fill_the_disk_is_not_unpacked(server, publish, tmp_path, monkeypatch):
    publish(tar(MEMBERS), "x.tar.gz", members=r"(a|b)/[0-9]+\.jpg")
    monkeypatch.setattr(module, "_LARGEST_UNPACKED", 1000)
    with pytest.raises(BadFile, match="holds more than 1,000 bytes"):
        download("made", tmp_path)
    assert left_over(tmp_path) == ["x.tar.gz"]


def test_only_sets_with_published_files_are_fetched(tmp_path):
    for name in ("sample", "folder:x", "nothing"):
        with pytest.raises(InvalidInput, match="nothing is fetched for"):
            download(name, tmp_path)


def test_every_published_file_has_a_checksum_a_size_and_a_web_address():
    for published in PUBLISHED.values():
        for remote in published.files:
            kind, _, digits = remote.checksum.partition(":")
            assert len(digits) == hashlib.new(kind).digest_size * 2
            assert 1000 < remote.size < 10**9
            assert all(re.fullmatch(r"https?://[\w.-]+/.*" + re.escape(remote.name), url) for url in remote.urls)
        assert bool(published.members) == (len(published.files) == 1)
        assert bool(published.members) == bool(published.md5 or published.counts)
        for name in published.md5 or [pattern.replace("*", "1") for pattern in published.counts]:
            assert re.fullmatch(published.members, name)


@pytest.fixture
def askew(capsys, monkeypatch):
    """What the command says when it is called in this process, which is nothing on standard output."""

    def call(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["askew", *map(str, words)])
        with pytest.raises(SystemExit) as exit:
            main()
        out, errors = capsys.readouterr()
        assert (out, exit.value.code or 0) == ("", code), errors
        return errors

    return call


def test_the_command_tells_how_far_it_is(server, publish, askew, tmp_path, monkeypatch):
    publish()
    monkeypatch.setattr(terminal, "LOG_SECONDS", 0.0)
    *lines, last = askew("bench", "download", "made", "--data", tmp_path).splitlines()
    assert len(lines) > 2
    told = [re.fullmatch(r"made, bytes: ([0-9,]+) of 600,000, \d+ s( left)?", line) for line in lines]
    assert [int(line[1].replace(",", "")) for line in told] == sorted({int(line[1].replace(",", "")) for line in told})
    assert told[-1][1] == "600,000"
    assert last == f"made is in {tmp_path / 'made'}"


def test_on_a_terminal_the_command_draws_a_bar(server, publish, askew, tmp_path, monkeypatch):
    publish()
    monkeypatch.setattr(terminal, "err", Console(file=io.StringIO(), force_terminal=True))
    askew("bench", "download", "made", "--data", tmp_path)
    drawn = terminal.err.file.getvalue()
    assert "made, bytes" in drawn
    assert "100%" in drawn


def test_a_quiet_command_says_nothing(server, publish, askew, tmp_path):
    publish()
    assert askew("bench", "download", "made", "--data", tmp_path, "--quiet") == ""
    assert (tmp_path / "made" / "file.gz").read_bytes() == CONTENT


def test_the_command_says_on_one_line_that_a_set_is_incomplete(server, archive, askew, tmp_path):
    holding(b=b"two")(tmp_path / "made")
    line = askew("bench", "download", "made", "--data", tmp_path, code=2)
    assert line == f"askew: {tmp_path / 'made'} is there, but has no a/1.jpg; move it away and run this again\n"


def test_time_left_is_by_the_pace_of_this_transfer_and_not_of_what_was_there(monkeypatch):
    clock, steps = iter([0.0, 0.0, 10.0]), []
    monkeypatch.setitem(_teller.__globals__, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    tell = _teller("made", steps.append)
    tell(900, 1000)
    tell(950, 1000)
    assert steps[-1].seconds_left == 10


def test_the_command_needs_no_torch(server, publish, tmp_path):
    publish()
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from askew.cli.bench.download import fetch\n"
        "from askew.datasets.download import PUBLISHED, Published, Remote\n"
        f"PUBLISHED['made'] = {PUBLISHED['made']!r}\n"
        "fetch('made', Path(sys.argv[1]), quiet=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "made, bytes: 600,000 of 600,000" in done.stderr
