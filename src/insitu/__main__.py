"""`python -m insitu` is the `insitu` script."""

from insitu.cli.main import main

if __name__ == "__main__":
    main()
