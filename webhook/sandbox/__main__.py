"""`python -m webhook.sandbox`: the API server and its controllers until Ctrl-C."""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from webhook.sandbox import Sandbox
from webhook.sandbox.controllers import Controllers
from webhook.sandbox.controllers.kinds import LOST

_HELP = """\
export KUBECONFIG={kubeconfig}

An API server with Trainer, JobSet and Job stand-ins and two nodes. Nothing guards it yet; to guard it:

  interlock serve --host 127.0.0.1 --port 9443 --url https://127.0.0.1:9443

Lose a node, and get it back:

  kubectl annotate node node-0 {lost}=true
  kubectl annotate node node-0 {lost}-

Ctrl-C ends it; nothing is kept.
"""


async def serve(kubeconfig: Path, port: int) -> None:
    """Serve until SIGINT or SIGTERM, with the kubeconfig written and how to use it printed."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Sandbox(port=port) as sandbox, Controllers(sandbox.kubeconfig(user="controllers")):
        sandbox.write_kubeconfig(kubeconfig)
        sys.stdout.write(_HELP.format(kubeconfig=kubeconfig, lost=LOST))
        sys.stdout.flush()
        await stopped.wait()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(prog="python -m webhook.sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the API server; 0 takes a free one")
    parser.add_argument(
        "--kubeconfig", type=Path, help="where to write the kubeconfig (replaced); else a temporary directory"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        kubeconfig = options.kubeconfig or (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-sandbox-"))) / "kubeconfig"
        )
        asyncio.run(serve(kubeconfig.absolute(), options.port))


if __name__ == "__main__":
    main()
