"""``python -m setwise``, and so ``torchrun … -m setwise``, is the command line."""

from setwise.cli.main import main

if __name__ == "__main__":
    main()
