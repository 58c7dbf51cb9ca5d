"""`python -m tunedex` is `tuner`."""

from tunedex.cli import main

if __name__ == "__main__":
    main()
