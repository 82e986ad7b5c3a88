"""The command line: `python -m mender --issue-file ISSUE.md`, in the repository's folder."""

import os
import re
import sys
from pathlib import Path

from mender import agent, testing, tools
from mender.client import ApiError, Client

FINISHED, API_FAILED, USAGE, OUT_OF_STEPS = 0, 1, 2, 3

_USAGE = "usage: python -m mender --issue-file ISSUE.md [--max-steps 16] [--max-test-runs 5]"
_TEST = re.compile(r"(\S+\.py::.+?) fails")


def main(argv: list[str]) -> int:
    options = {"--issue-file": "", "--max-steps": "16", "--max-test-runs": "5"}
    try:
        for name, value in zip(argv[::2], argv[1::2], strict=True):
            options[name]  # an unknown option is an error
            options[name] = value
        issue = Path(options["--issue-file"]).read_text(encoding="utf-8").strip()
        steps, runs = int(options["--max-steps"]), int(options["--max-test-runs"])
        test = _TEST.search(issue)
        if test is None:
            raise ValueError("the issue names no failing test (tests/test_x.py::test_y fails)")
        base_url, model = os.environ["OPENAI_BASE_URL"], os.environ["MENDER_MODEL"]
    except (KeyError, ValueError, OSError) as e:
        print(f"mender: {e!r}\n{_USAGE}", file=sys.stderr)
        return USAGE
    root = Path.cwd()
    hands = tools.Tools(root, lambda: testing.run(root, test[1]), runs)
    try:
        client = Client(base_url, os.environ.get("OPENAI_API_KEY", ""), model)
        return FINISHED if agent.run(client, hands, issue, steps) else OUT_OF_STEPS
    except ApiError as e:
        print(f"mender: {e}", file=sys.stderr)
        return API_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
