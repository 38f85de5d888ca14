"""Where the project is: tests stand in folders of different depth."""

from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
