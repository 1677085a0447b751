"""Run the command line as `python -m fedrec`."""

from fedrec.cli.main import main

if __name__ == "__main__":
    main()
