"""Every fixed text the model can see, in one place."""

from typing import Any

SYSTEM = "You repair Python code. Use the tools; one call at a time."
NO_CALL = "Use a tool."

PASSED = "passed"
FAILED = "failed: {test}"
TIMED_OUT = "failed: {test} timed out"
NOT_FOUND = "failed: {test} not found"
CRASHED = "failed: {test} crashed"
NOT_RUN = "failed: {test} did not run"
NO_RUNS_LEFT = "no test runs left"

LINE = "{line} {text}"
HIT = "{path}:{line} {text}"
DOCSTRING_CUT = "..."
NO_MATCH = "no match"
EMPTY_FOLDER = "empty"
MORE = "and {count} more"
DONE = "done"

ERROR = "error: {problem}"
NOT_JSON = "arguments are not a JSON object"
UNKNOWN_TOOL = "no tool {name}"
MISSING = "{name} is missing"
UNKNOWN_FIELD = "{tool} takes no {name}"
NOT_TEXT = "{name} must be a string"
NOT_NUMBER = "{name} must be a number"
NO_FILE = "no file {path}"
NOT_SOURCE = "{path} is not text"
NO_FOLDER = "no folder {path}"
NO_LINE = "{path} has {count} lines"
NOT_IN_LINE = "old is not in line {line}"
SAME = "old equals new"
EMPTY_OLD = "old is empty"
EMPTY_TEXT = "text is empty"
IS_TEST = "tests are read-only"
NO_EDIT = "no edit to undo"

# name -> (description, fields, required fields)
_TOOLS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "run_tests": ("Run the failing test.", {}, ()),
    "read": (
        "Show the code around a line.",
        {"path": "string", "line": "integer"},
        ("path", "line"),
    ),
    "edit": (
        "Replace old by new in one line.",
        {"path": "string", "line": "integer", "old": "string", "new": "string"},
        ("path", "line", "old", "new"),
    ),
    "undo": ("Take back the last edit.", {}, ()),
    "search": ("Find lines with this text.", {"text": "string"}, ("text",)),
    "list_files": ("List a folder.", {"path": "string"}, ("path",)),
    "finish": ("End the session.", {"summary": "string"}, ()),
}


def fields(tool: str) -> dict[str, str]:
    """The fields of a tool and their JSON types; KeyError for an unknown tool."""
    return _TOOLS[tool][1]


def required(tool: str) -> tuple[str, ...]:
    """The fields that must be given."""
    return _TOOLS[tool][2]


def tools() -> list[dict[str, Any]]:
    """The `tools` list of every request, in the form of OpenAI's Chat Completions API."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {field: {"type": kind} for field, kind in properties.items()},
                    "required": list(needed),
                },
            },
        }
        for name, (description, properties, needed) in _TOOLS.items()
    ]
