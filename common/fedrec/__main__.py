"""`python -m fedrec`: the same command as `fedrec`."""

from fedrec.cli.main import main

if __name__ == "__main__":
    main()
