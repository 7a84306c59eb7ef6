"""batchq beside other queues: the same empty items through each, in one run.

    make peers
    python -m benchmarks.peers [--peers batchq-sqlite,...] [--items 50000] [--seconds 8]
                               [--recovery 15] [--json]

Each peer is used as its documentation says is fastest, with the durability it has by
default. A phase ends after `--seconds`, and its rate is that of what was done by then.

    enqueue      items a second, by 1 and by 4 processes
    work         claim, call an empty function and complete, by 1 and by 4 processes
    kill         2,000 items; a worker is killed half way, and after that another works for
                 `--recovery` seconds: how many items were executed by nobody and are gone
                 (lost), twice (doubled), or not completed at the end (stuck)
"""
