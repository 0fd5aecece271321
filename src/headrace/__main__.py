"""`python -m headrace` is the program `headrace`."""

from headrace.console.cli import main

if __name__ == "__main__":
    main()
