#!/bin/sh
# Make the pocket base policy again: ./examples/pocket/all.sh WORK
# The sessions are those that were recorded; record.py makes new ones from a task set. Some hours
# on two cores.
set -eu
here=$(dirname "$0")
recipes=$(cd "$here/../../recipes/pocket" && pwd)
work=$1
make() { python "$here/make.py" "$work" "$@"; }
python -m pip download -q --no-deps --only-binary=:all: -r "$here/packages.txt" -d "$work/wheels"
make functions
make tokenizer
make repairs "$here/sets.toml"
xz -dc "$here/sessions.jsonl.xz" > "$work/sessions.jsonl"
make sessions "$work/sessions.jsonl" sessions
cd "$work"
insitu midtrain "$recipes/midtrain.toml"
insitu midtrain "$recipes/coldstart.toml"
insitu midtrain "$recipes/refine.toml"
