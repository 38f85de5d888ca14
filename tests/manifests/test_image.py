"""What the Dockerfile makes, as far as it can be tried without a container engine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import kubernetes
import pytest

from tests.guard.test_serve import Served
from tests.repository import REPOSITORY
from tests.scripted import ScriptedApiServer

DOCKERFILE = REPOSITORY / "Dockerfile"
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")

SANDBOXED = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
cp "$ACCOUNT"/* /run/secrets/kubernetes.io/serviceaccount
chmod -R a+rX /run
for place in $(awk '{print $2}' /proc/mounts | grep -vE '^/(proc|sys|dev)'); do
  mount -o remount,bind,ro "$place" 2>/dev/null || true
done
for place in / /run "$INSTALLED"; do
  if touch "$place/written" 2>/dev/null; then echo "$place can be written" >&2; exit 1; fi
done
exec setpriv --reuid 4242 --regid 4242 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  "$INSTALLED/bin/interlock" serve
"""
"""A root file system that cannot be written, a user without a name or a right, a mounted ServiceAccount."""


def test_the_linter_has_nothing_against_the_dockerfile() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.fixture
def installed() -> Iterator[Path]:
    """The wheel in an environment of its own, made as the Dockerfile makes it, that every user may read."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("it takes root and util-linux to run it as another user on a read-only root")
    if PYTHON is None:
        pytest.skip("there is no Python that every user may run: install one as /usr/bin/python3")
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        environment = Path(directory, "interlock")
        wheels = Path(directory, "dist")
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(REPOSITORY))
        run(PYTHON, "-m", "venv", "--without-pip", str(environment))
        (wheel,) = map(str, wheels.iterdir())
        into = ("--python", str(environment / "bin" / "python"))
        run(
            *pip, *into, "install", "--no-compile", "--constraint", str(REPOSITORY / "constraints.txt"), wheel
        )
        trimmed(environment)
        yield environment


def trimmed(environment: Path) -> None:
    """Delete what the image leaves out, by the Dockerfile's own command."""
    (command,) = re.findall(r"^RUN (find /opt/interlock .* -delete)", DOCKERFILE.read_text(), re.MULTILINE)
    run("sh", "-c", command.replace("/opt/interlock", shlex.quote(str(environment))))


def size(directory: Path) -> int:
    """In bytes, the bytecode that pip adds left aside."""
    files = (one for one in directory.rglob("*") if one.is_file() and not one.is_symlink())
    return sum(one.stat().st_size for one in files if one.suffix != ".pyc")


def run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode and "connection" in ran.stderr.lower():
        pytest.skip(f"no package registry answers, from which the image's packages come: {ran.stderr[-300:]}")
    assert ran.returncode == 0, ran.stderr


def environment_of_the_image() -> dict[str, str]:
    (instruction,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    pairs = (pair.split("=", 1) for pair in instruction.replace("\\\n", " ").split())
    return {name: value for name, value in pairs if name != "PATH"}


MOST_OF_THE_ENVIRONMENT = 60_000_000
"""Bytes, without bytecode: 52 million when this was written, 124 million untrimmed."""


@pytest.mark.timeout(400)
async def test_the_wheel_alone_runs_as_any_user_on_a_read_only_root(installed: Path, tmp_path: Path) -> None:
    assert size(installed) < MOST_OF_THE_ENVIRONMENT
    async with ScriptedApiServer() as cluster:
        account = tmp_path / "account"
        account.mkdir()
        (account / "token").write_text("a token")
        (account / "ca.crt").write_bytes(cluster.authority_pem)
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "sh", "-c", SANDBOXED),
            stdout=PIPE,
            stderr=PIPE,
            cwd="/",
            env={
                **environment_of_the_image(),
                "PATH": os.environ["PATH"],
                "ACCOUNT": str(account),
                "INSTALLED": str(installed),
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(cluster.port),
                "INTERLOCK_HOST": "127.0.0.1",
                "INTERLOCK_PORT": "0",
                "INTERLOCK_DRAIN_SECONDS": "0",
            },
        )
        guard = Served(process)
        following = asyncio.create_task(guard.follow())
        try:
            ready = await guard.told("ready")
            assert ready["api_server"] == f"https://127.0.0.1:{cluster.port}"
            process.terminate()
            assert await process.wait() == 0, guard.raw
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await following


@pytest.fixture
def trimmed_client(tmp_path: Path) -> Path:
    """A folder with the Kubernetes client as the image has it."""
    installed = Path(kubernetes.__file__).parent
    folder = tmp_path / "client"
    shutil.copytree(installed, folder / "kubernetes", ignore=shutil.ignore_patterns("__pycache__"))
    before = size(folder)
    trimmed(folder)
    assert size(folder) < before / 5
    return folder


def python_with(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with the folder before all that is installed."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": f"{folder}:{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


WITHOUT_A_CLUSTER = """
import importlib, pathlib, pkgutil, kubernetes, webhook, certs
for package in (webhook, certs):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(pathlib.Path(kubernetes.__file__).parent.parent)
"""


def test_every_module_of_the_product_loads_without_what_the_image_leaves_out(trimmed_client: Path) -> None:
    ran = python_with(trimmed_client, "-c", WITHOUT_A_CLUSTER)
    assert (ran.returncode, ran.stdout.strip()) == (0, str(trimmed_client)), ran.stderr


def test_what_the_image_leaves_out_is_gone_from_it(trimmed_client: Path) -> None:
    """Or the two tests beside this one would prove nothing."""
    for client in ("kubernetes.client", "kubernetes.aio.client"):
        ran = python_with(trimmed_client, "-c", f"import {client}; {client}.CoreV1Api")
        assert "No module named" in ran.stderr


@pytest.mark.timeout(400)
def test_every_kind_of_credentials_works_without_what_the_image_leaves_out(trimmed_client: Path) -> None:
    """They are all that the product takes from the Kubernetes client."""
    options = ("-q", "-p", "no:cacheprovider")
    ran = python_with(trimmed_client, "-m", "pytest", *options, "tests/cluster/test_credentials.py")
    assert ran.returncode == 0, ran.stdout
