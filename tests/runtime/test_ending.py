"""A program that ends without teardown ends as it would, but for the teardown."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import logging
    from gtpo_verl.runtime.ending import without_teardown

    class Kept:
        def __del__(self):
            print("freed")

    with {how}:
        import atexit, sys, threading, time
        kept = Kept()
        logging.basicConfig(stream=sys.stdout)
        atexit.register(print, "registered")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
        print("last", end=" words\\n")
        {end}
"""
ENDS = ["pass", "sys.exit()", "sys.exit(3)", "sys.exit('why')", "sys.exit(256 + 7)", "raise ValueError('why')"]


def run(how: str, end: str) -> subprocess.CompletedProcess:
    program = textwrap.dedent(PROGRAM).format(how=how, end=end)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_any_program_without_freeing_anything(end: str) -> None:
    ours, any_program = run("without_teardown()", end), run("__import__('contextlib').nullcontext()", end)
    assert ours.returncode == any_program.returncode
    assert ours.stdout.splitlines() == ["last words", "thread", "registered"]
    assert any_program.stdout.splitlines() == [*ours.stdout.splitlines(), "freed"]
    assert ours.stderr.splitlines()[-1:] == any_program.stderr.splitlines()[-1:]
