"""``python -m roller``: the command line."""

from roller.cli.main import main

if __name__ == "__main__":
    main()
