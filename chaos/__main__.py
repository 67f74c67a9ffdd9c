"""`python -m chaos`: the command where its folder of programs is not on the path."""

from chaos.cli import main

if __name__ == "__main__":
    main()
