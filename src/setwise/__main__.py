"""``python -m setwise``, and so ``torchrun … -m setwise``, is the command line."""

from setwise.cli import main

if __name__ == "__main__":
    main()
