"""Downloads over real HTTP that break off, restart, lie about their content, or meet each other."""

import hashlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from gtpo_verl.data import downloads
from gtpo_verl.data.downloads import RemoteFile, download, look_up
from gtpo_verl.data.errors import DownloadError

CONTENT = random.Random(0).randbytes(50_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
GIT_SHA1 = hashlib.sha1(b"blob 50000\0" + CONTENT).hexdigest()


@pytest.fixture
def url(mirror):
    mirror.contents["/file.bin"] = CONTENT
    return mirror.address + "/file.bin"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(downloads.time, "sleep", lambda _: None)


def test_a_connection_that_keeps_breaking_is_resumed_within_one_call(mirror, url, tmp_path):
    mirror.cut_after["/file.bin"] = 9_000
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges("/file.bin") == [None, *(f"bytes={n}-" for n in range(9_000, 50_000, 9_000))]


def test_what_arrived_is_kept_for_the_next_call(mirror, url, tmp_path):
    mirror.never_beyond["/file.bin"] = 20_000
    with pytest.raises(DownloadError, match=r"20,000 of 50,000 bytes are kept"):
        download(look_up(url), tmp_path)
    mirror.never_beyond.clear()
    mirror.requests.clear()
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges("/file.bin") == ["bytes=20000-"]
    assert list(tmp_path.rglob("*.part")) == []


def test_a_file_that_changed_meanwhile_starts_anew(mirror, url, tmp_path):
    mirror.never_beyond["/file.bin"] = 20_000
    with pytest.raises(DownloadError):
        download(look_up(url), tmp_path)
    mirror.never_beyond.clear()
    mirror.contents["/file.bin"] = CONTENT[::-1]
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT[::-1]


def test_a_server_that_ignores_ranges_sends_the_whole_file_again(mirror, url, tmp_path):
    mirror.never_beyond["/file.bin"] = 20_000
    with pytest.raises(DownloadError):
        download(look_up(url), tmp_path)
    mirror.never_beyond.clear()
    mirror.ignores_ranges.add("/file.bin")
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT


def test_a_file_without_a_version_is_never_pieced_together(mirror, url, tmp_path):
    mirror.never_beyond["/file.bin"] = 20_000
    with pytest.raises(DownloadError):
        download(RemoteFile(url, size=len(CONTENT)), tmp_path)
    mirror.never_beyond.clear()
    mirror.contents["/file.bin"] = CONTENT[::-1]
    assert download(RemoteFile(url, size=len(CONTENT)), tmp_path).read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("digest", [SHA256, GIT_SHA1, "not-a-digest", None])
def test_a_right_digest_or_none_is_accepted(mirror, url, tmp_path, digest):
    mirror.etags["/file.bin"] = "v"
    assert download(RemoteFile(url, 50_000, "v", digest), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("digest", [SHA256, GIT_SHA1])
def test_a_wrong_digest_deletes_what_was_sent(mirror, url, tmp_path, digest):
    mirror.contents["/file.bin"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(DownloadError, match="digest"):
        download(RemoteFile(url, 50_000, "v", digest), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_damaged_file_of_the_cache_is_fetched_again(mirror, url, tmp_path):
    path = download(RemoteFile(url, 50_000, "v", SHA256), tmp_path)
    path.write_bytes(b"x" * 50_000)
    assert download(RemoteFile(url, 50_000, "v", SHA256), tmp_path).read_bytes() == CONTENT


def test_refusals_name_the_address_and_the_answer(mirror, url, tmp_path):
    with pytest.raises(DownloadError, match=r"/absent: the server answers 404"):
        look_up(mirror.address + "/absent")
    with pytest.raises(DownloadError, match=r"/absent: the server answers 404"):
        download(RemoteFile(mirror.address + "/absent"), tmp_path)
    remote = look_up(url)
    mirror.failing.add("/file.bin")
    with pytest.raises(DownloadError, match=r"file\.bin: the server answers 503; 0 of 50,000 bytes"):
        download(remote, tmp_path)
    with pytest.raises(DownloadError, match="cannot be reached"):
        look_up("http://127.0.0.1:9/file.bin")


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_of_many_processes_one_downloads_and_all_get_the_file(mirror, url, tmp_path):
    mirror.cut_after["/file.bin"] = 1_000
    program = (
        "import sys, pathlib; from gtpo_verl.data.downloads import download, look_up; "
        "print(len(download(look_up(sys.argv[1]), pathlib.Path(sys.argv[2])).read_bytes()))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, url, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(4)
    ]
    assert [process.communicate(timeout=100)[0] for process in processes] == [b"50000\n"] * 4
    assert mirror.ranges("/file.bin") == [None, *(f"bytes={n}-" for n in range(1_000, 50_000, 1_000))]
    assert files_in(tmp_path) == ["file.bin"]


OTHER = CONTENT[::-1]


@pytest.mark.parametrize("version", ["ETag", "Last-Modified"])
@pytest.mark.parametrize("moment", ["after it was looked up", "between two parts"])
def test_parts_of_two_versions_are_never_put_together(mirror, url, tmp_path, version, moment):
    """Of the same length, so that nothing but the version tells them apart."""
    dates = [{"ETag": 'W/"weak"', "Last-Modified": f"Thu, 0{day} Jan 2026 00:00:00 GMT"} for day in (1, 2)]
    if version == "Last-Modified":
        mirror.headers["/file.bin"] = dates[0]
    remote = look_up(url)
    if moment == "between two parts":
        mirror.never_beyond["/file.bin"] = 20_000
        with pytest.raises(DownloadError, match="20,000 of 50,000 bytes are kept"):
            download(remote, tmp_path)
        mirror.never_beyond.clear()
    mirror.contents["/file.bin"] = OTHER
    if version == "Last-Modified":
        mirror.headers["/file.bin"] = dates[1]
    with pytest.raises(DownloadError, match="not the one that was looked up"):
        download(remote, tmp_path)
    assert download(look_up(url), tmp_path).read_bytes() == OTHER


def test_a_weak_etag_alone_is_no_version(mirror, url, tmp_path):
    mirror.headers["/file.bin"] = {"ETag": 'W/"same"'}
    mirror.never_beyond["/file.bin"] = 20_000
    with pytest.raises(DownloadError):
        download(look_up(url), tmp_path)
    mirror.never_beyond.clear()
    mirror.contents["/file.bin"] = OTHER
    assert download(look_up(url), tmp_path).read_bytes() == OTHER


@pytest.mark.parametrize("digest", [None, SHA256])
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Content-Type": "text/html; charset=utf-8"}, "a web page instead of the file"),
        ({"Content-Encoding": "gzip", "ETag": '"v"'}, r"compressed \(gzip\)"),
        ({"Content-Encoding": "gzip", "ETag": '"v"', "Content-Length": "50000"}, r"compressed \(gzip\)"),
        ({"Content-Type": "application/octet-stream", "ETag": '"v"'}, "a file of 15 bytes; it announced 50,000"),
    ],
)
def test_something_else_than_was_announced_is_not_kept(mirror, url, tmp_path, digest, headers, words):
    """A login page with status 200 must neither be cached nor become the beginning of the file."""
    mirror.never_beyond["/file.bin"] = 20_000
    mirror.etags["/file.bin"] = "v"
    remote = RemoteFile(url, 50_000, "v", digest)
    with pytest.raises(DownloadError, match="kept"):
        download(remote, tmp_path)
    mirror.never_beyond.clear()
    mirror.sent_instead["/file.bin"] = (b"<html>log in!!!", headers)
    with pytest.raises(DownloadError, match=words):
        download(remote, tmp_path)
    mirror.sent_instead.clear()
    mirror.requests.clear()
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert mirror.ranges("/file.bin") == ["bytes=20000-"]


def test_an_answer_of_the_wrong_length_that_says_nothing_of_it_is_not_kept(mirror, url, tmp_path):
    mirror.sent_instead["/file.bin"] = (b"Hello", {"Content-Length": "", "ETag": f'"{SHA256}"'})
    remote = look_up(url)
    with pytest.raises(DownloadError, match="another number of bytes"):
        download(remote, tmp_path)
    assert files_in(tmp_path) == []


def test_a_server_that_refuses_ranges_is_asked_for_the_whole(mirror, url, tmp_path):
    mirror.never_beyond["/file.bin"] = 20_000
    with pytest.raises(DownloadError):
        download(look_up(url), tmp_path)
    mirror.never_beyond.clear()
    mirror.refuses_ranges.add("/file.bin")
    mirror.requests.clear()
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges("/file.bin") == ["bytes=20000-", None]


def test_a_server_that_starts_anew_each_time_is_given_up(mirror, url, tmp_path):
    """Also if it breaks off at another place each time, so that more arrives than the last time again and again."""
    mirror.ignores_ranges.add("/file.bin")

    class Alternating(dict):
        asked = 0

        def get(self, path, default=None):
            Alternating.asked += 1
            return 10_000 + 5_000 * (Alternating.asked % 2)

    mirror.never_beyond = Alternating()
    with pytest.raises(DownloadError, match="of 50,000 bytes are kept"):
        download(look_up(url), tmp_path)
    assert len(mirror.ranges("/file.bin")) < 10


def test_a_refused_download_leaves_no_file(mirror, url, tmp_path):
    remote = look_up(url)
    mirror.contents.clear()
    with pytest.raises(DownloadError, match="404"):
        download(remote, tmp_path)
    assert files_in(tmp_path) == []


def test_secrets_of_an_address_are_not_shown(mirror, url, tmp_path):
    secret = mirror.address.replace("//", "//user:secret@") + "/absent.parquet?signature=secret"
    for remote in (secret, secret.replace(mirror.address[7:], "127.0.0.1:9")):
        with pytest.raises(DownloadError) as caught:
            look_up(remote)
        assert "secret" not in str(caught.value)
        with pytest.raises(DownloadError) as caught:
            download(RemoteFile(remote), tmp_path)
        assert "secret" not in str(caught.value)


def test_a_full_disk_is_named_and_what_arrived_is_kept(mirror, url, tmp_path):
    """A limit on the size of files stands for the disk: the kernel refuses to write beyond it."""
    program = (
        "import resource, sys, pathlib; from gtpo_verl.data.downloads import download, look_up; "
        "remote = look_up(sys.argv[1]); resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY)); "
        "download(remote, pathlib.Path(sys.argv[2]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, url, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    last = result.stderr.strip().splitlines()[-1]
    assert "DownloadError" in last
    assert "downloads" in last
    assert "cannot be written (File too large)" in last
    assert next(tmp_path.rglob("*.part")).stat().st_size == 30_000
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges("/file.bin")[-1] == "bytes=30000-"


def test_a_killed_download_is_resumed(mirror, url, tmp_path):
    """Killed while it waits between two attempts."""
    mirror.never_beyond["/file.bin"] = 20_000
    program = (
        "import sys, pathlib; from gtpo_verl.data import downloads as d; "
        "d._FRUITLESS_ATTEMPTS = 1000; d.download(d.look_up(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, url, str(tmp_path)])
    try:
        deadline, waiting = time.monotonic() + 60, threading.Event()  # time.sleep waits for nothing here
        while len(mirror.ranges("/file.bin")) < 2 and time.monotonic() < deadline:
            waiting.wait(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    mirror.never_beyond.clear()
    mirror.requests.clear()
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges("/file.bin") == ["bytes=20000-"]
