"""`python -m actorllm` is the command `actorllm`."""

from .cli import main

if __name__ == "__main__":
    main()
