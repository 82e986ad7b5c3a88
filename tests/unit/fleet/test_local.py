import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from insitu.fleet.local import LocalService, ServiceError
from insitu.types import UsageError

SERVE = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"


def service(tmp_path: Path, code: str, **settings) -> LocalService:
    flag = tmp_path / "up"

    def command() -> list[str]:
        flag.unlink(missing_ok=True)
        return [sys.executable, "-S", "-c", code, str(flag)]

    async def healthy() -> bool:
        return flag.exists()

    return LocalService(
        name="thing", command=command, healthy=healthy, log=tmp_path / "log", **settings
    )


async def test_a_killed_service_comes_back(tmp_path):
    deaths: list[str] = []
    thing = service(tmp_path, SERVE, on_death=lambda n, c: deaths.append(c))
    await thing.start()
    first = thing.pid
    os.kill(first, signal.SIGKILL)
    while thing.restarts == 0:
        await asyncio.sleep(0.01)
    await thing.ready()
    assert thing.pid not in (0, first)
    assert deaths == ["ended with code -9"]
    await thing.stop()
    assert thing.pid == 0


async def test_a_service_that_cannot_start_is_given_up_and_names_its_log(tmp_path):
    thing = service(tmp_path, "raise SystemExit('no such model')", max_deaths=2)
    with pytest.raises(ServiceError, match=r"thing died 2 times .* code 1 while starting.*log"):
        await asyncio.wait_for(thing.start(), 20)
    assert "no such model" in (tmp_path / "log").read_text()
    await thing.stop()


async def test_children_of_a_service_die_with_it(tmp_path):
    code = (
        "import pathlib, subprocess, sys, time;"
        "p = subprocess.Popen(['sleep', '60']);"
        "pathlib.Path(sys.argv[1]).write_text(str(p.pid)); time.sleep(60)"
    )
    thing = service(tmp_path, code)
    await thing.start()
    child = int((tmp_path / "up").read_text())
    await thing.stop()
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text():
            return
        await asyncio.sleep(0.02)
    pytest.fail("the child is still there")


async def test_what_the_user_can_mend_is_told_at_once(tmp_path):
    code = "import sys; print('starting'); sys.exit(print('no such model. Give one.') or 2)"
    thing = service(tmp_path, code)
    (tmp_path / "log").write_text("an older run's words\n")
    with pytest.raises(UsageError, match=r"^no such model\. Give one\.$"):
        await asyncio.wait_for(thing.start(), 10)
    assert thing.restarts == 0
    await thing.stop()
