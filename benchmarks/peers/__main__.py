"""`python -m benchmarks.peers`; what it runs lies in `run`, where spawned processes find it."""

from benchmarks.peers.run import main

if __name__ == "__main__":
    main()
