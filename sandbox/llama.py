"""The TrainJob of the demo, which the sandbox offers too."""

__all__ = ["A_KEY", "MANIFEST"]

A_KEY = "dispatch.phpboyscout.uk/a"
MANIFEST = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: llama
  annotations:
    {A_KEY}: "1"
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    numNodes: 2
"""
