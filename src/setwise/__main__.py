"""Run the command line with ``python -m setwise`` or ``torchrun … -m setwise``."""

from setwise.cli.main import main

if __name__ == "__main__":
    main()
