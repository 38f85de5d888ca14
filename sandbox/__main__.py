"""`python -m sandbox`: the API server and its controllers until Ctrl-C."""

import signal

if __name__ == "__main__":
    # Ctrl-C ends it without a traceback while the rest is imported.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import asyncio
import contextlib
import shlex
import sys
import tempfile
from pathlib import Path

from sandbox import Sandbox
from sandbox.admission.match_conditions import EVALUATED
from sandbox.controllers import Controllers
from sandbox.controllers.kinds import LOST
from sandbox.llama import MANIFEST
from sandbox.terminal import Terminal

_NOT_EVALUATED = (
    "The sandbox does not evaluate matchConditions, for want of the Python package cel-python: it sends "
    "every write of a TrainJob, and with the guard stopped all of them fail."
)
_TO_TRY = f"""\
# guard it; this one stays in the foreground
{shlex.quote(str(Path(sys.executable).with_name("interlock")))} serve --host 127.0.0.1 --port 9443 --url https://127.0.0.1:9443

# create a TrainJob, look at it, suspend and resume it
kubectl create -f - <<'EOF'
{MANIFEST}EOF
kubectl get nodes,trainjobs,jobsets,jobs,pods -o wide
kubectl patch trainjob llama --type merge -p '{{"spec":{{"suspend":true}}}}'
kubectl patch trainjob llama --type merge -p '{{"spec":{{"suspend":false}}}}'

# lose a node, and get it back
kubectl annotate node node-0 {LOST}=true
kubectl annotate node node-0 {LOST}-
"""


async def serve(kubeconfig: Path | None, port: int, terminal: Terminal) -> None:
    """Serve until SIGINT or SIGTERM, with the kubeconfig written and how to use it printed."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        if kubeconfig is None:
            directory = tempfile.TemporaryDirectory(prefix="interlock-sandbox-")
            kubeconfig = Path(stack.enter_context(directory)) / "kubeconfig"
        sandbox = await stack.enter_async_context(Sandbox(port=port))
        await stack.enter_async_context(Controllers(sandbox.kubeconfig(user="controllers")))
        sandbox.write_kubeconfig(kubeconfig)
        terminal.show(f"export KUBECONFIG={shlex.quote(str(kubeconfig.absolute()))}\n")
        terminal.say(
            "An API server with stand-ins for Trainer, JobSet and the Job controller, and two nodes. Ctrl-C "
            "ends it; nothing is kept. Nothing guards it yet. Things to try in other terminals, each after "
            "the export above:"
        )
        terminal.show(_TO_TRY)
        if not EVALUATED:
            terminal.say(_NOT_EVALUATED)
        await stopped.wait()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(prog="python -m sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the API server; 0 takes a free one")
    parser.add_argument(
        "--kubeconfig", type=Path, help="where to write the kubeconfig (replaced); else a temporary directory"
    )
    options = parser.parse_args()
    asyncio.run(serve(options.kubeconfig, options.port, Terminal.of(sys.stdout)))


if __name__ == "__main__":
    main()
