"""A server with the hub's address layout, files of the published shapes, and the command as a user starts it."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from gtpo_verl.rewards.prompts import dapo_prompt

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORIES = {
    "dapo-math-17k": "BytedTsinghua-SIA/DAPO-Math-17k",
    "aime24": "BytedTsinghua-SIA/AIME-2024",
    "aime25": "math-ai/aime25",
    "math500": "HuggingFaceH4/MATH-500",
}
FILES = {
    "dapo-math-17k": "data/dapo-math-17k.parquet",
    "aime24": "data/aime-2024.parquet",
    "aime25": "test.jsonl",
    "math500": "test.jsonl",
}


@dataclass
class Mirror:
    """Serves ``contents`` (path to bytes) over HTTP, with the hub's headers.

    Attributes:
        cut_after: bytes of a response after which it breaks off, by path.
        never_beyond: bytes of the file that are never sent, whatever is asked, by path.
        etags: announced instead of the true ones, by path.
        ignores_ranges: paths that are always sent whole.
        refuses_ranges: paths whose requests with a Range are answered with 416.
        headers: more headers, or others, by path.
        sent_instead: body and headers of the answer to GET, by path, where HEAD announces something else; an empty
            header is left out.
        failing: paths answered with 503.
        redirects: addresses to which paths are redirected, as the hub does with large files.
        requests: (method, path, Range header) of everything asked.
        tokens: the Authorization headers that came, by path.
    """

    contents: dict[str, bytes] = field(default_factory=dict)
    cut_after: dict[str, int] = field(default_factory=dict)
    never_beyond: dict[str, int] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    ignores_ranges: set[str] = field(default_factory=set)
    refuses_ranges: set[str] = field(default_factory=set)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    sent_instead: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    redirects: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, set[str | None]] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""

    def publish(self, name: str, content: bytes, prefix: str = "") -> str:
        path = f"{prefix}/datasets/{REPOSITORIES[name]}/resolve/main/{FILES[name]}"
        self.contents[path] = content
        return path

    def ranges(self, path: str) -> list[str | None]:
        return [wanted for method, asked, wanted in self.requests if method == "GET" and asked == path]


class _Handler(BaseHTTPRequestHandler):
    mirror: Mirror

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        mirror, wanted = self.mirror, self.headers.get("Range")
        mirror.requests.append((self.command, self.path, wanted))
        mirror.tokens.setdefault(self.path, set()).add(self.headers.get("Authorization"))
        content = mirror.contents.get(self.path)
        if content is None or self.path in mirror.failing:
            self.send_response(404 if content is None else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path in mirror.redirects:
            self.send_response(302)
            self.send_header("Location", mirror.redirects[self.path])
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if body and self.path in mirror.sent_instead:
            other, headers = mirror.sent_instead[self.path]
            self.send_response(200)
            for name, value in {"Content-Length": str(len(other)), **headers}.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(other)
            return
        if wanted and self.path in mirror.refuses_ranges:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = (
            int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.path not in mirror.ignores_ranges else 0
        )
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        headers = {
            "ETag": f'"{mirror.etags.get(self.path, hashlib.sha256(content).hexdigest())}"',
            "X-Repo-Commit": COMMIT,
            # The hub announces its chunk store for large files; plain requests have to work all the same.
            "X-Xet-Hash": "0" * 64,
            "Content-Length": str(len(content) - start),
            **mirror.headers.get(self.path, {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not body:
            return
        end = min(
            mirror.never_beyond.get(self.path, len(content)), start + mirror.cut_after.get(self.path, len(content))
        )
        self.wfile.write(content[start:end])
        self.close_connection = True


@pytest.fixture
def mirror():
    """A server on a free port of this machine, stopped after the test."""
    mirror = Mirror()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"mirror": mirror}))
    mirror.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield mirror
    server.shutdown()
    thread.join()
    server.server_close()


class Samples:
    """Files of the published shapes."""

    commit = COMMIT

    @staticmethod
    def parquet(rows) -> bytes:
        sink = pyarrow.BufferOutputStream()
        table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, sink)
        return sink.getvalue().to_pybytes()

    @staticmethod
    def chat(pairs) -> list[dict]:
        """Rows as DAPO-Math-17k and AIME-2024 have them."""
        return [
            {
                "data_source": "math_dapo",
                "prompt": [{"content": dapo_prompt(problem), "role": "user"}],
                "ability": "MATH",
                "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
                "extra_info": {"index": f"id-{row}"},
            }
            for row, (problem, answer) in enumerate(pairs)
        ]

    @classmethod
    def dapo(cls, pairs) -> bytes:
        return cls.parquet(cls.chat(pairs))

    @staticmethod
    def lines(pairs) -> bytes:
        """JSON lines as AIME 2025 and MATH-500 have them."""
        rows = ({"problem": problem, "answer": answer, "id": str(row)} for row, (problem, answer) in enumerate(pairs))
        return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="session")
def samples():
    return Samples


@dataclass
class Command:
    """``gtpo-verl data`` in a folder, without the variables that a test session may have set."""

    folder: Path

    def start(self, *arguments: str, before: Sequence[str] = (), **variables: str) -> subprocess.Popen:
        """Starts it; ``before`` is a command that starts it in turn, ``variables`` are the environment's."""
        names = ("PATH", "LANG", "PYTHONPATH", "OMP_NUM_THREADS")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        home = self.folder / ".home"
        home.mkdir(exist_ok=True)
        return subprocess.Popen(
            # Where nothing is compiled yet, a library of reasoning-gym's is, with a warning of the compiler's.
            [*before, sys.executable, "-W", "ignore::SyntaxWarning", "-m", "gtpo_verl.cli", "data", *arguments],
            cwd=self.folder,
            env={**kept, "HOME": str(home), "COLUMNS": "200", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        """Runs it to its end."""
        with self.start(*arguments, **options) as process:
            try:
                output, errors = process.communicate(timeout=240)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.fixture
def data(tmp_path):
    """The command, in an empty folder."""
    return Command(tmp_path)
