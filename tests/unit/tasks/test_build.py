import json
import shutil
import tomllib

import pytest

from insitu.sandbox.paths import find_bwrap
from insitu.tasks.build import BuildSpec, build_taskset
from insitu.tasks.leaks import sweep_environment, sweep_function, sweep_tree
from insitu.tasks.mutate import apply_edit
from insitu.tasks.read import read_record, read_task, read_taskset
from insitu.tasks.runner import Worker, Workspace
from insitu.tasks.source import PackageSpec
from insitu.types import TaskError
from tests.unit.tasks.conftest import real_packages


def spec_of(taskset, package, **changes):
    values = {
        "folder": taskset,
        "packages": (PackageSpec(source=str(package)),),
        "count": 8,
        "workers": 1,
        "tries": 6,
        "fewest_edits": 8,
        "per_function": 4,
        "sandbox": "",
    }
    return BuildSpec(**(values | changes))


@pytest.fixture(scope="module")
def built(tmp_path_factory, request):
    """A set with held-out tasks; built once, since tests only read it."""
    from tests.unit.tasks import conftest

    path = tmp_path_factory.mktemp("built")
    package = conftest.package.__wrapped__(path)
    taskset = conftest.taskset.__wrapped__(path)
    report = build_taskset(spec_of(taskset, package, candidates=True))
    return taskset, package, report


def test_a_build_gives_sound_balanced_tasks(built):
    taskset, _, report = built
    tasks = read_taskset(taskset)
    assert 4 <= len(tasks) == report.built == report.written <= 8
    assert 0 <= report.unevenness <= 0.5
    assert json.loads((taskset / "report.json").read_text())["built"] == len(tasks)
    assert "shapes-1.0" in [p.source for p in report.packages]


def test_each_task_fails_and_its_repair_passes_in_a_cold_process(built):
    taskset, _, _ = built
    task = read_taskset(taskset)[0]
    record = read_record(taskset / "tasks" / task.task_id)
    space = Workspace(
        base=taskset / "bases" / record.base,
        env=taskset / "envs" / record.env,
        import_root="src",
        workdir="/home/dev/shapes",
    )
    with Worker(space) as worker:
        broken = (taskset / "layers").glob(f"{task.task_id}-*/{record.path}")
        text = next(iter(broken)).read_text()
        tests = [*task.fail_to_pass, *task.pass_to_pass]
        before = worker.run(tests, files={record.path: text})
        after = worker.run(tests, files={record.path: apply_edit(text, record.fix)})
    assert before.failed == list(task.fail_to_pass)
    assert set(after.passed) == set(tests)


def test_candidates_hold_the_repair_and_their_outcomes(built):
    taskset, _, _ = built
    for task in read_taskset(taskset):
        record = read_record(taskset / "tasks" / task.task_id)
        passing = [c.edit for c in record.candidates if c.passes]
        assert record.fix in passing
        assert record.legal_edits == len(record.candidates) > len(passing)


def test_a_folder_is_in_harbors_format_and_tells_the_agent_only_the_task(built):
    taskset, _, _ = built
    task = read_taskset(taskset)[0]
    folder = taskset / "tasks" / task.task_id
    table = tomllib.loads((folder / "task.toml").read_text())
    assert table["schema_version"] == "1.4"
    assert table["verifier"]["environment_mode"] == "separate"
    assert (folder / "tests/test.sh").stat().st_mode & 0o111
    assert (folder / "solution/fix.patch").read_text().startswith("--- a/src/shapes/core.py\n")
    record = read_record(folder)
    assert task.instruction == (
        f"`{record.qualname}` in src/shapes/core.py:{record.first_line} is broken: "
        f"{record.fail_to_pass[0]} fails. Fix it; leave the tests alone."
    )
    layer = task.layers[1]
    assert [p.name for p in sorted(__import__("pathlib").Path(layer).rglob("*.py"))] == ["core.py"]


def test_a_second_build_writes_nothing_and_a_removed_task_comes_back(built):
    taskset, package, first = built
    again = build_taskset(spec_of(taskset, package, candidates=True))
    assert (again.built, again.written) == (first.built, 0)
    name = read_taskset(taskset)[0].task_id
    shutil.rmtree(taskset / "tasks" / name)
    assert build_taskset(spec_of(taskset, package, candidates=True)).written == 1


def test_a_build_runs_the_package_in_a_sandbox(taskset, package):
    if find_bwrap() is None:
        pytest.skip("no bubblewrap")
    real_packages(next((taskset / "envs").iterdir()))
    mark = package.parent / "escaped"
    path = package / "tests" / "test_core.py"
    path.write_text(
        f"try:\n    open({str(mark)!r}, 'w').close()\nexcept OSError:\n    pass\n"
        + path.read_text()
    )
    report = build_taskset(spec_of(taskset, package, sandbox="bubblewrap", tries=3, count=4))
    assert report.built
    assert not mark.exists()


def test_functions_of_another_set_are_not_used(built, package, tmp_path):
    taskset, _, _ = built
    other = tmp_path / "other"
    shutil.copytree(taskset / "envs", other / "envs", symlinks=True)
    with pytest.raises(TaskError, match="no task could be built"):
        build_taskset(spec_of(other, package, apart_from=(taskset,)))


def test_a_package_whose_tests_fail_is_refused_by_name(taskset, package):
    path = package / "tests" / "test_core.py"
    path.write_text(path.read_text() + "\n\ndef test_bad():\n    assert 1 == 2\n")
    with pytest.raises(
        TaskError, match=r"1 of its tests already fail: tests/test_core.py::test_bad"
    ):
        build_taskset(spec_of(taskset, package))
    assert not (taskset / "tasks").exists()
    left = spec_of(
        taskset, package, packages=(PackageSpec(source=str(package), skip_tests=("test_bad",)),)
    )
    assert build_taskset(left).built


def test_flaky_tests_are_left_out(taskset, package):
    path = package / "tests" / "test_core.py"
    path.write_text(
        path.read_text()
        + "\n\ndef test_flaky(tmp_path_factory):\n    import os, time\n"
        + "    assert (time.time_ns() // 1000) % 2\n" * 3
    )
    allowed = PackageSpec(source=str(package), allow_failing=True)
    report = build_taskset(spec_of(taskset, package, packages=(allowed,)))
    assert not any("flaky" in t for r in read_taskset(taskset) for t in r.fail_to_pass)
    assert report.packages[0].left_out


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda p: shutil.rmtree(p / "tests"), "carries no tests"),
        (lambda p: shutil.rmtree(p / "src"), "holds no Python package"),
        (
            lambda p: (p / "pyproject.toml").write_text(
                '[project]\nname = "x"\nlicense = "GPL-3.0"\n'
            ),
            "not on the permissive list",
        ),
        (
            lambda p: (p / "tests/test_core.py").write_text("import nowhere\n"),
            "does not import .*nowhere",
        ),
        (lambda p: (p / "pyproject.toml").write_text("[project\n"), "not TOML"),
        (
            lambda p: (p / "pyproject.toml").write_text(
                '[project]\nname = "x"\nlicense = "MIT"\ndependencies = ["no such!"]\n'
            ),
            "requirements do not install",
        ),
    ],
)
def test_bad_packages_give_one_line_and_leave_nothing(taskset, package, harm, message):
    harm(package)
    before = sorted((taskset / "envs").iterdir())
    with pytest.raises(TaskError, match=message) as error:
        build_taskset(spec_of(taskset, package))
    assert "\n" not in str(error.value)
    assert not (taskset / "tasks").exists()
    assert not list(taskset.glob("**/*.part"))
    assert sorted((taskset / "envs").iterdir()) == before


def test_missing_sources_are_refused(taskset):
    for source in ("/no/such/folder", "no/such.tar.gz"):
        with pytest.raises(TaskError, match="no such folder or archive"):
            build_taskset(spec_of(taskset, source))


def test_with_keep_going_bad_packages_are_reported(taskset, package, tmp_path):
    packages = (PackageSpec(source=str(tmp_path / "none")), PackageSpec(source=str(package)))
    report = build_taskset(spec_of(taskset, package, packages=packages, keep_going=True))
    assert report.built
    assert "no such folder" in report.packages[-1].problem


def test_the_sweep_finds_planted_copies(package, taskset):
    assert sweep_tree(package) == []
    for name in (
        "src/shapes/__pycache__/core.cpython-311.pyc",
        ".git/config",
        "build/lib/core.py",
        "a.egg-info/x",
    ):
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    finds = " ".join(sweep_tree(package))
    assert all(word in finds for word in ("__pycache__", ".git", "build/lib", "egg-info"))
    env = next((taskset / "envs").iterdir())
    assert sweep_environment(env, ["shapes"]) == []
    site = next(env.glob("lib/*/site-packages"))
    (site / "shapes").mkdir()
    (site / "shapes-1.0.dist-info").mkdir()
    assert len(sweep_environment(env, ["shapes"])) == 2


def test_the_sweep_finds_a_renamed_copy_of_the_function(package):
    path = "src/shapes/core.py"
    intact = (package / path).read_text()
    assert not sweep_function([package], path=path, qualname="chunks", intact=intact)
    copy = intact[intact.index("def chunks") :].replace("found", "out").replace("items", "xs")
    elsewhere = package.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "vendored.py").write_text(copy)
    finds = sweep_function([package, elsewhere], path=path, qualname="chunks", intact=intact)
    assert finds == ["vendored.py: the same function"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests/test.sh", r"has no tests/test\.sh.*[Bb]uild it again"),
        ("instruction.md", r"has no instruction\.md"),
        ("task.toml", r"has no task\.toml"),
        ("insitu.json", r"has no insitu\.json"),
    ],
)
def test_reading_says_what_is_missing(built, tmp_path, name, message):
    taskset, _, _ = built
    copy = tmp_path / "copy"
    shutil.copytree(taskset, copy, symlinks=True)
    task = read_taskset(copy)[0]
    (copy / "tasks" / task.task_id / name).unlink()
    with pytest.raises(TaskError, match=message):
        read_task(copy / "tasks" / task.task_id)


def test_reading_refuses_what_is_no_set(tmp_path, built):
    with pytest.raises(TaskError, match="is not a task set"):
        read_taskset(tmp_path)
    taskset, _, _ = built
    with pytest.raises(TaskError, match="holds no task for rl"):
        read_taskset(taskset, use="rl")
