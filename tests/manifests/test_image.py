"""What the Dockerfile makes, as far as it can be tried without a container engine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import kubernetes
import pytest
import typer

from sandbox import Sandbox
from sandbox.controllers import Client
from sandbox.controllers.kinds import TRAINJOBS
from sandbox.controllers.planning import Create, Patch
from tests import objects, programs
from tests.guard.test_serve import Served
from tests.programs import Ran
from tests.repository import REPOSITORY
from tests.scripted import ScriptedApiServer
from webhook import __version__
from webhook.cli import app

DOCKERFILE = REPOSITORY / "Dockerfile"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as the Dockerfile makes it."""
    wheels = tmp_path_factory.mktemp("dist")
    run(*PIP, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(REPOSITORY))
    (wheel,) = wheels.iterdir()
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Iterator[Path]:
    """The wheel in an environment of its own, made as the Dockerfile makes it, that every user may read."""
    if PYTHON is None:
        pytest.skip("there is no Python that every user may run: install one as /usr/bin/python3")
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        environment = Path(directory, "interlock")
        run(PYTHON, "-m", "venv", "--without-pip", str(environment))
        constraints = ("--constraint", str(REPOSITORY / "constraints.txt"))
        into = ("--python", str(environment / "bin" / "python"))
        run(*PIP, *into, "install", "--no-compile", *constraints, str(wheel))
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


@pytest.mark.prove
def test_the_wheel_has_what_an_installation_needs_and_no_sandbox_and_no_test(wheel: Path) -> None:
    with ZipFile(wheel) as zipped:
        names = zipped.namelist()
    assert {name.split("/")[0] for name in names} == {
        "certs",
        "webhook",
        f"trainjob_interlock-{__version__}.dist-info",
    }
    in_the_repository = {
        str(path.relative_to(REPOSITORY))
        for package in ("certs", "webhook")
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in names if ".dist-info/" not in name} == in_the_repository
    assert not [name for name in names if "sandbox" in name or "test" in name]


IMPORTED = """
import importlib, pkgutil, sys, certs, webhook
for package in (certs, webhook):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        print(module.name)
print(*sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[1:])), file=sys.stderr)
"""
COMMANDS = sorted(typer.main.get_group(app).commands)


@pytest.mark.prove
@pytest.mark.timeout(400)
def test_every_module_of_the_wheel_is_imported_without_what_only_developers_install(installed: Path) -> None:
    python = installed / "bin" / "python"
    ran = subprocess.run(
        [python, "-I", "-c", IMPORTED, "sandbox", "tests"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.strip() == ""
    assert {"webhook.cli", "webhook.guard.server", "certs.keeper"} <= set(ran.stdout.split())
    developers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    only_developers = {re.split("[<>=]", one)[0] for one in developers["dev"]}
    listed = subprocess.check_output([*PIP, "--python", str(python), "freeze"], text=True)
    assert not only_developers & {line.split("==")[0].lower() for line in listed.splitlines()}


@pytest.mark.prove
@pytest.mark.timeout(400)
async def test_every_command_of_the_wheel_runs(installed: Path, sandbox: Sandbox, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    sandbox.write_kubeconfig(kubeconfig)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig)}

    async def interlock(*arguments: str, program: str = "interlock") -> Ran:
        return await programs.run(str(installed / "bin" / program), *arguments, env=environment)

    for command in COMMANDS:
        helped = await interlock(command, "--help")
        assert (helped.code, helped.err) == (0, ""), command
    assert (await interlock("--version", program="kubectl-interlock")).out == f"interlock {__version__}\n"
    completed = await interlock("rel", program="kubectl_complete-interlock")
    assert (completed.code, completed.out.split()[0]) == (0, "release")

    async with Client(sandbox.kubeconfig()) as admin:
        await admin.write(Create(TRAINJOBS, objects.trainjob(namespace="default", suspend=True)))
        for verb, said in (
            (["find"], "No TrainJobs that wait for pods found"),
            (["inspect", "llama"], "remaining pods: none"),
            (["ceased", "llama"], "ceased: nothing remains"),
            (["open", "llama"], "llama opened (A=1)"),
        ):
            ran = await interlock(*verb)
            assert (ran.code, said in ran.out + ran.err) == (0, True), ran
        await admin.write(Patch(TRAINJOBS, "default", "llama", {"spec": {"suspend": True}}))
        ran = await interlock("release", "llama")
        assert (ran.code, "llama released (A=2)" in ran.out) == (0, True), ran


@pytest.mark.prove
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"),
    reason="it takes root, and util-linux on PATH, to run it as another user on a read-only root",
)
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


@pytest.mark.prove
@pytest.mark.timeout(400)
def test_every_kind_of_credentials_works_without_what_the_image_leaves_out(trimmed_client: Path) -> None:
    """They are all that the product takes from the Kubernetes client."""
    options = ("-q", "-p", "no:cacheprovider")
    ran = python_with(trimmed_client, "-m", "pytest", *options, "tests/cluster/credentials")
    assert ran.returncode == 0, ran.stdout
