"""scripts/test.sh says what is missing before it starts, rather than passing without it."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_all_needs_a_browser(tmp_path: Path) -> None:
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))  # all that the script needs until then
    result = subprocess.run(
        [shutil.which("bash"), ROOT / "scripts/test.sh", "--all"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert result.stderr == "error: --all needs Chromium: apt-get install -y --no-install-recommends chromium\n"
