"""`torchrun -m mecefo_runtime`: see `launch`."""

from mecefo_runtime.launch.torchrun import main

if __name__ == "__main__":
    main()
