"""`python3 -m recipe.gtpo.main algorithm=gtpo_v1 ...`: the same as `gtpo-verl train ...`, for those used to recipes."""

import sys

from gtpo_verl.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
