import json
import lzma
import shutil
from dataclasses import replace

import pytest

from insitu.evaluate.baselines import fit_table
from insitu.kit.codec import from_json, to_json
from insitu.tasks.build import BuildSpec, build_taskset
from insitu.tasks.export import export_known
from insitu.tasks.known import Recall, read_known, write_known
from insitu.tasks.mutate import apply_edit, candidate_edits
from insitu.tasks.read import read_record, read_taskset
from insitu.tasks.source import PackageSpec, SourceTree
from insitu.tasks.trials import count_kinds
from insitu.types import TaskError
from tests.unit.tasks import conftest


def spec_of(taskset, package, **changes):
    values = {
        "folder": taskset,
        "packages": (PackageSpec(source=str(package)),),
        "count": 6,
        "workers": 1,
        "tries": 4,
        "fewest_edits": 8,
        "per_function": 3,
        "sandbox": "",
    }
    return BuildSpec(**(values | changes))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A training set, and the file of what is known of it; built once, tests only read it."""
    path = tmp_path_factory.mktemp("built")
    package = conftest.package.__wrapped__(path)
    taskset = conftest.taskset.__wrapped__(path)
    build_taskset(spec_of(taskset, package))
    known = path / "known.json.xz"
    write_known(known, export_known(taskset))
    return taskset, package, known


def records_of(taskset):
    return [read_record(taskset / "tasks" / t.task_id) for t in read_taskset(taskset)]


def test_known_work_gives_the_same_tasks_without_a_trial(built, taskset):
    first, package, known = built
    report = build_taskset(spec_of(taskset, package, known=known))
    assert records_of(taskset) == records_of(first)
    assert report.built == report.written == len(records_of(first))
    assert report.packages[0].tests == len(read_known(known).packages[0].survey.tests)
    assert not (taskset / "work").exists()


def test_a_smaller_set_is_the_beginning_of_the_known_one(built, taskset):
    first, package, known = built
    build_taskset(spec_of(taskset, package, known=known, count=3))
    ids = [r.task_id for r in records_of(taskset)]
    assert ids == [r.task_id for r in records_of(first)][:3]
    assert not (taskset / "work").exists()


def test_what_does_not_fit_is_tried_anew(built, taskset, tmp_path):
    _, package, known = built
    work = read_known(known)
    other = replace(work.packages[0], installed={"pytest": "0.1"})
    write_known(tmp_path / "other.xz", replace(work, packages=(other,)))
    report = build_taskset(spec_of(taskset, package, known=tmp_path / "other.xz"))
    assert report.built
    assert (taskset / "work" / "shapes-1.0" / "trials.jsonl").is_file()


@pytest.mark.parametrize(
    ("package", "settings"),
    [
        ({}, {"plan": "tries=1"}),
        ({}, {"count": 7}),
        ({"digest": "0" * 64}, {}),
        ({"python": "3.0"}, {}),
        ({"installed": {"pytest": "0.1"}}, {}),
        ({"options": (("tests/test_other.py",), (), False)}, {}),
    ],
)
def test_work_fits_only_what_is_equal_in_all_it_depends_on(built, package, settings):
    taskset, _, known = built
    work = read_known(known)
    source = from_json(SourceTree, (taskset / "bases" / "shapes-1.0.json").read_bytes())
    env = next((taskset / "envs").iterdir())
    spec = PackageSpec(source="shapes")

    def recall(work, **settings):
        return Recall(work, **({"plan": work.plan, "count": 6} | settings))

    whole = recall(work)
    assert whole.survey(source, env, spec) == work.packages[0].survey
    assert whole.trials("shapes-1.0") == [t.trial for t in work.tasks]
    other = replace(work, packages=(replace(work.packages[0], **package),))
    unfit = recall(other, **settings)
    assert unfit.survey(source, env, spec) is None
    assert unfit.trials("shapes-1.0") is None
    assert unfit.validations() == unfit.legal("shapes-1.0") == {}


def test_nothing_is_recalled_before_the_package_is_seen_to_fit(built):
    work = read_known(built[2])
    recall = Recall(work, plan=work.plan, count=1)
    assert recall.trials("shapes-1.0") is None
    assert recall.validations() == recall.legal("shapes-1.0") == {}


def test_equal_work_gives_equal_bytes(built, tmp_path):
    _, _, known = built
    write_known(tmp_path / "again.xz", read_known(known))
    assert (tmp_path / "again.xz").read_bytes() == known.read_bytes()


def _cut(raw):
    return raw[: len(raw) // 2]


def _other_format(raw):
    return lzma.compress(lzma.decompress(raw).replace(b'{"format":1', b'{"format":9'))


def _mixed(raw):
    text = lzma.decompress(raw)
    at = text.index(b'"validation":{"key":"') + len(b'"validation":{"key":"')
    return lzma.compress(text[:at] + b"00000000" + text[at + 8 :])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_cut, "cannot be read"),
        (lambda raw: b"", "cannot be read|not known work"),
        (lambda raw: b"not xz", "cannot be read"),
        (lambda raw: lzma.compress(b"[]"), "is not known work"),
        (lambda raw: lzma.compress(b"\xff\xfe"), "is not known work"),
        (lambda raw: raw[:-40] + b"x" * 40, "cannot be read"),
        (_other_format, "has format 9, not 1"),
        (_mixed, "mixes up the bugs"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(built, taskset, tmp_path, harm, message):
    _, package, known = built
    bad = tmp_path / "bad.xz"
    bad.write_bytes(harm(known.read_bytes()))
    with pytest.raises(TaskError, match=message) as error:
        build_taskset(spec_of(taskset, package, known=bad))
    assert "\n" not in str(error.value)
    assert not (taskset / "tasks").exists()
    with pytest.raises(TaskError, match="cannot be read"):
        read_known(tmp_path / "missing.xz")


def test_training_tasks_name_their_legal_edits_and_say_that_none_was_run(built):
    for record in records_of(built[0]):
        assert not record.outcomes_run
        assert [c.edit for c in record.candidates if c.passes] == [record.fix]
        assert record.legal_edits == len(record.candidates)
        path = built[0] / "bases" / record.base / record.path
        broken = apply_edit(path.read_text(), record.bug)
        edits = candidate_edits(broken, record.path, record.first_line, record.last_line)
        assert [(c.edit, c.family) for c in record.candidates] == edits
    table = fit_table(r.candidates for r in records_of(built[0]))
    assert sum(table.fixes.values()) == len(records_of(built[0]))


def test_known_work_counts_the_intact_functions_edits(built):
    task = read_known(built[2]).tasks[0]
    trial = task.trial
    text = (built[0] / "bases" / trial.base / trial.path).read_text()
    edits = candidate_edits(text, trial.path, trial.first_line, trial.last_line)
    assert {(f, o, n): c for f, o, n, c in task.legal} == count_kinds(edits)


def test_validations_of_earlier_builds_are_completed(built, tmp_path):
    """They lack the legal edits and the name of the package they belong to."""
    first, package, _ = built
    old = tmp_path / "old"
    shutil.copytree(first, old, symlinks=True)
    path = old / "work" / "validated.jsonl"
    lines = []
    for line in path.read_text().splitlines():
        value = json.loads(line)
        found = json.loads(value["validation"]) | {"candidates": []}
        lines.append(value | {"question": "plain", "validation": json.dumps(found)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = build_taskset(spec_of(old, package))
    assert again.written == 0
    assert len(path.read_text().splitlines()) == len(lines) + again.built
    assert to_json(export_known(old)) == to_json(export_known(first))
