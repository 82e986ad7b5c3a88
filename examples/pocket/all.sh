#!/bin/sh
# Make the pocket base policy again: ./examples/pocket/all.sh WORK
# WORK holds sdists/ and wheels/ (see README.md) and a task set built from training packages in
# taskset/ (recipes/demo/tasks-train.toml). Some hours on two cores.
set -eu
here=$(dirname "$0")
work=$1
make() { python "$here/make.py" "$work" "$@"; }
make functions
make tokenizer
make repairs "$here/sets.toml"
python "$here/record.py" "$work/taskset" "$work/sessions.jsonl" 3
make sessions "$work/sessions.jsonl" sessions
recipe=$(cd "$here/../../recipes/pocket" && pwd)/midtrain.toml
cd "$work"
insitu midtrain "$recipe"
