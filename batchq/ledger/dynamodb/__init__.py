"""The ledger in one DynamoDB table.

calls        requests, sent again where that can help
refusals     what the server says when it refuses, by its name
server_time  what time it is there
wire         values, expressions and single writes as DynamoDB spells them
keys         which row lies under which key, what an item's id is, and how ranks spread
items        a document's row, and what each change of state makes of it
bundles      ready items that wait together in the queue
fleet        the rows of processes: beats, leases, tallies
ended        processes that have ended, and the sum of their tallies
unit         rows that move together, in one transaction
runs         a row for each run
claiming enqueueing settling reaping reading    the verbs
table        its definition, creation and options
"""

from batchq.ledger.dynamodb.ledger import DynamoLedger

__all__ = ["DynamoLedger"]
