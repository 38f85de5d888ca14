"""`python -m sandbox.demo`: the story of the rule in a terminal, told by the real guard.

Every step is asserted; one that is not as told ends the demo with a sentence and exit code 1. What was
started is always stopped.
"""

import signal

if __name__ == "__main__":
    # Ctrl-C ends it without a traceback while the rest is imported; nothing is started before that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import asyncio
import contextlib
import shlex
import shutil
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import aiohttp

from sandbox import Sandbox
from sandbox.controllers import ApiError, Controllers, Process, Waits
from sandbox.controllers.kinds import (
    JOBS,
    JOBSETS,
    LOST,
    OUT_OF_SERVICE,
    PODS,
    TRAINJOBS,
    condition_status,
    is_terminating,
)
from sandbox.kubectl import (
    Command,
    Kubectl,
    OverHttp,
    create,
    get_pods,
    patch_trainjob,
    taint,
)
from sandbox.kueue_act import KueueAct
from sandbox.llama import A_KEY, MANIFEST
from sandbox.lost_node_act import LostNodeAct
from sandbox.processes import checking, guarding
from sandbox.telling import NotAsToldError, Teller
from sandbox.terminal import Terminal

_DENIED = 'admission webhook "readmission.interlock.dispatch.phpboyscout.uk" denied the request: '
_SECONDS_TO_READY = 30.0
_GRACE_SECONDS = 1.0
_BACKOFF_SECONDS = 10.0
"""As the first one of the real Job controller."""
_TOLERATION = timedelta(seconds=1)
"""How long a pod stays on a node that is lost; 300 s by default on a real cluster."""

_TO_TRY = f"""\
# what there is; STATE is the last condition's type, as with
# the real TrainJob: Suspended, though llama runs on
kubectl get nodes,trainjobs,jobsets,jobs,pods -o wide
kubectl get trainjob llama -o jsonpath='{{.spec.suspend}}{{"\\n"}}'
# raising A is a re-admission, too
kubectl annotate trainjob llama {A_KEY}=99 --overwrite
# what its Workload says; evict it, and let it back
kubectl get workloads -o yaml
kubectl patch $(kubectl get workloads -o name) --type merge -p '{{"spec":{{"active":false}}}}'
kubectl patch $(kubectl get workloads -o name) --type merge -p '{{"spec":{{"active":true}}}}'
# lose a node, and get it back: what runs there is Terminating
# within a second, and its rank waits
kubectl annotate node node-1 {LOST}=true
interlock inspect llama; interlock find
kubectl annotate node node-1 {LOST}-
# re-create it: it is deleted, and its creation is denied
# until its pods are gone
kubectl get trainjob llama -o yaml > again.yaml
kubectl replace --force -f again.yaml
kubectl create -f again.yaml
"""


class Story(Teller):
    """The second act, steps 4 to 8, told with a cluster and an operator's kubectl."""

    async def tell(self) -> None:
        """Tell it. Raises `NotAsToldError`."""
        await self._first_admission()
        lost = await self._suspended_with_a_node_lost()
        await self._resume_denied(lost)
        await self._confirmed_down(lost)
        await self._stalled_controller()

    async def _first_admission(self) -> None:
        self.terminal.title("4. llama once more. A, the number of its admission, is 1.")
        manifest = self.directory / "llama.yaml"
        manifest.write_text(MANIFEST)
        await self._allowed(create(manifest))
        await self._two_run()
        await self._type(get_pods())

    async def _suspended_with_a_node_lost(self) -> Process:
        lost = self.cluster.processes[-1]
        self.terminal.title(f"5. {lost.node} is lost, and llama is suspended.")
        await self.cluster.nodes.lose(lost.node)
        await self._allowed(_suspend())
        await self._confirmed_suspended()
        await self._until(PODS, lambda pods: len(pods) == 1, "one pod is left")
        await self._type(get_pods())
        if [process.pod for process in self.cluster.processes] != [lost.pod]:
            raise NotAsToldError(f"{lost.pod} should be all that runs, but this does: {self._running()}")
        self.terminal.say(
            f"The pod on the live node is gone. {lost.pod} stays Terminating: only the kubelet of "
            f"{lost.node} could stop it, and nobody reaches that. Its process runs on, and may be writing a "
            f"checkpoint."
        )
        return lost

    async def _resume_denied(self, lost: Process) -> None:
        self.terminal.title("6. Somebody resumes llama. A second execution would write the same checkpoint.")
        answer = await self._type(_resume(2))
        self._expect(
            answer,
            f"Error from server (PodsRemain): {_DENIED}waiting for pods of the previous execution to go: "
            f"{lost.pod} on {lost.node} (Ready=Unknown)",
        )
        await self._until(
            TRAINJOBS,
            lambda jobs: jobs[0]["spec"]["suspend"] and jobs[0]["metadata"]["annotations"][A_KEY] == "1",
            "llama is as it was",
        )
        self.terminal.say(
            "Denied, and nothing was changed: llama is suspended and A is still 1. It is a call to retry, "
            "and the message says what it waits for."
        )

    async def _confirmed_down(self, lost: Process) -> None:
        self.terminal.title(f"7. The operator makes sure that {lost.node} is down, and says so.")
        await self.cluster.nodes.power_off(lost.node)
        self.terminal.say(
            f"{lost.node} is powered off: its processes have ended for certain. The out-of-service taint "
            "tells Kubernetes, which then lets go of the pods."
        )
        await self._allowed(taint(lost.node, OUT_OF_SERVICE, "nodeshutdown", "NoExecute"))
        await self._until(PODS, lambda pods: not pods, "no pod is left")
        await self._type(get_pods())
        await self._admitted(2)

    async def _stalled_controller(self) -> None:
        self.terminal.title("8. Nothing runs, and yet it is too early: a controller hangs.")
        self.terminal.say(
            "The JobSet controller hangs. llama is suspended; that reaches its JobSet, but not the Job. Both "
            "pods fail. The Job, never told to stop, waits out its backoff before it starts new ones."
        )
        self.cluster.jobset.stall()
        await self._allowed(_suspend())
        await self._until(JOBSETS, lambda found: found[0]["spec"]["suspend"], "the JobSet is to be suspended")
        for process in self.cluster.processes:
            await self.cluster.pods.fail(process.namespace, process.pod)
        await self._type(get_pods())
        self._expect_nothing_runs()
        answer = await self._type(_resume(3))
        self._expect(
            answer, f"Error from server (ExecutionNotStopped): {_DENIED}", "Job llama-node-0 is not suspended"
        )
        self.terminal.say(
            "Denied although no pod remains: the Job is about to start pods of A=2 again, and A=3 would come "
            "beside them. Then the JobSet controller goes on and suspends the Job, and the next try is let "
            "through; the new pods start after what is left of the backoff (about 10 s)."
        )
        self.cluster.jobset.proceed()
        await self._confirmed_suspended()
        await self._admitted(3)
        self.terminal.say(
            "As told: two resumes were denied, and each was let through once nothing of the execution before "
            "it could run any more."
        )

    async def _admitted(self, a: int) -> None:
        """Resume with a new A, when nothing of the previous execution runs: the claim of the whole story."""
        self._expect_nothing_runs()
        await self._allowed(_resume(a))
        await self._two_run()
        await self._type(get_pods())

    async def _two_run(self) -> None:
        await self._until(
            PODS,
            lambda pods: (
                sum(pod.get("status", {}).get("phase") == "Running" for pod in pods) == 2
                and not any(map(is_terminating, pods))
            ),
            "two pods run",
        )

    async def _confirmed_suspended(self) -> None:
        for kind in (TRAINJOBS, JOBSETS, JOBS):
            await self._until(
                kind,
                lambda items: all(condition_status(item, "Suspended") == "True" for item in items),
                f"the {kind.name} is suspended",
            )


def _suspend() -> Command:
    return patch_trainjob("llama", {"spec": {"suspend": True}})


def _resume(a: int) -> Command:
    body = {"metadata": {"annotations": {A_KEY: str(a)}}, "spec": {"suspend": False}}
    return patch_trainjob("llama", body)


async def demo(kubectl: str | None, *, keep: bool, terminal: Terminal) -> None:
    """Start everything, tell the story, stop everything. Raises `NotAsToldError`."""
    with tempfile.TemporaryDirectory(prefix="interlock-demo-") as name:
        directory = Path(name)
        kubeconfig = directory / "kubeconfig"
        async with Sandbox() as sandbox:
            sandbox.write_kubeconfig(kubeconfig)
            terminal.say(
                "TrainJob Interlock: nothing re-admits a TrainJob while any pod of it may still run."
            )
            async with (
                Controllers(
                    sandbox.kubeconfig(user="controllers"),
                    grace_seconds=_GRACE_SECONDS,
                    backoff_seconds=_BACKOFF_SECONDS,
                    waits=Waits(toleration=_TOLERATION),
                ) as cluster,
                contextlib.AsyncExitStack() as stack,
            ):
                terminal.say(
                    "On this machine: an in-memory API server, and stand-ins for the controllers and two "
                    f"nodes. {_how(kubectl)}"
                )
                runner = Kubectl(kubectl, kubeconfig, directory) if kubectl else OverHttp(cluster.client)
                lost_node = LostNodeAct(cluster, runner, terminal, directory, kubeconfig)
                await lost_node.without_the_guard()
                url = await stack.enter_async_context(guarding(kubeconfig))
                terminal.say(f"Now the real guard is there, at {url}, and the API server asks it.")
                await lost_node.with_the_guard()
                await Story(cluster, runner, terminal, directory).tell()
                await _give_back(cluster)
                await stack.enter_async_context(checking(kubeconfig))
                await KueueAct(cluster, runner, terminal, directory, lambda: _denials(sandbox)).tell()
                if keep:
                    await _give_back(cluster)
                    commands = shlex.quote(str(Path(sys.executable).parent))
                    terminal.show(f"export KUBECONFIG={kubeconfig}\nexport PATH={commands}:$PATH\n")
                    terminal.say(
                        "llama runs; the guard, the controllers and the nodes go on until Ctrl-C. Things to "
                        "try in another terminal, after the exports above:"
                    )
                    terminal.show(_TO_TRY)
                    await asyncio.Event().wait()


def _denials(sandbox: Sandbox) -> int:
    """How often the guard denied a re-admission."""
    return sum(
        not reviewed.allowed for reviewed in sandbox.audit if reviewed.webhook.startswith("readmission.")
    )


def _how(kubectl: str | None) -> str:
    if kubectl:
        return f"Commands are run by {kubectl}."
    return (
        "There is no kubectl on PATH: the same requests are made over HTTP, and what kubectl would print is "
        "shown."
    )


async def _give_back(cluster: Controllers) -> None:
    for node in sorted(cluster.machines.silent):
        await cluster.nodes.recover(node)
        await cluster.nodes.untaint_out_of_service(node)


async def _interruptibly(kubectl: str | None, *, keep: bool, terminal: Terminal) -> int:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not called in a task")

    def stop() -> None:
        # Once: a second Ctrl-C must not break off the stopping.
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await demo(kubectl, keep=keep, terminal=terminal)
    except NotAsToldError as error:
        sys.stderr.write(f"\ndemo: not as told: {error}\n")
        return 1
    except (ApiError, aiohttp.ClientError, OSError, TimeoutError) as error:
        sys.stderr.write(f"\ndemo: could not go on: {error!r}\n")
        return 1
    except asyncio.CancelledError:
        sys.stderr.write("\ndemo: stopped\n")
        return 0 if keep else 130
    return 0


def main() -> None:
    """Read the options, tell the story and exit with 0 when every step was as told."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running, until Ctrl-C")
    parser.add_argument("--kubectl", metavar="PATH", help="the kubectl to use; else the one on PATH, if any")
    options = parser.parse_args()
    kubectl = options.kubectl or shutil.which("kubectl")
    terminal = Terminal.of(sys.stdout)
    raise SystemExit(asyncio.run(_interruptibly(kubectl, keep=options.keep, terminal=terminal)))


if __name__ == "__main__":
    main()
