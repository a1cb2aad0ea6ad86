"""`python -m askew` is `askew`."""

from askew.cli import main

if __name__ == "__main__":
    main()
