"""Downloads over real HTTP that break off, restart, lie about their content, or meet each other."""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest

from gtpo_verl.data import downloads
from gtpo_verl.data.downloads import RemoteFile, download, look_up
from gtpo_verl.data.errors import DownloadError

CONTENT = os.urandom(50_000)
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
def test_a_right_digest_or_none_is_accepted(url, tmp_path, digest):
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


def test_two_processes_do_not_write_the_same_file(mirror, url, tmp_path):
    mirror.never_beyond["/file.bin"] = 20_000
    with pytest.raises(DownloadError):
        download(look_up(url), tmp_path)
    (part,) = tmp_path.rglob("*.part")
    with part.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process is downloading"):
            download(look_up(url), tmp_path)


def test_a_killed_download_is_resumed(mirror, url, tmp_path):
    """Killed while it waits between two attempts."""
    mirror.never_beyond["/file.bin"] = 20_000
    program = (
        "import sys, pathlib; from gtpo_verl.data import downloads as d; "
        "d._FRUITLESS_ATTEMPTS = 1000; d.download(d.look_up(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, url, str(tmp_path)])
    try:
        deadline = time.monotonic() + 60
        while len(mirror.ranges("/file.bin")) < 2 and time.monotonic() < deadline:
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    mirror.never_beyond.clear()
    mirror.requests.clear()
    assert download(look_up(url), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges("/file.bin") == ["bytes=20000-"]
