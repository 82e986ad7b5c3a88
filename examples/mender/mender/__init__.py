"""mender: a small coding agent that repairs a Python repository until one failing test passes."""
