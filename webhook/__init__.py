"""Nothing re-admits a Kubeflow TrainJob while any pod of it may still run."""

__version__ = "0.1.0"
