"""Enqueue: new, known, superseding and rejected documents."""

from __future__ import annotations

import pytest

from batchq.errors import UsageError
from batchq.ledger.base import Enqueued, Policy, Role, State
from tests.conformance.world import World, document, moved


def test_an_unknown_document_becomes_a_ready_item(world: World) -> None:
    """Each new document is one item, counted once."""
    before = world.tallies
    assert Enqueued(new=3) == world.enqueue("a", "b", "c")
    assert moved(before, world.tallies) == {"total": 3, "ready": 3}
    assert world.state("a") is State.READY


def test_an_empty_batch_brings_nothing(world: World) -> None:
    """No documents, no items, no error."""
    assert Enqueued() == world.enqueue()


def test_a_claimed_item_is_what_was_enqueued(world: World) -> None:
    """Identity, size and locator reach the worker unchanged, whatever the name."""
    world.worker()
    names = ["docs/a b/ü\u0301.md", "docs/'; DROP TABLE items; --", "docs/\n\t", "\U0001f600" * 60]
    names += ['docs/"quoted", {NULL}', "docs\\back\\slash\\"]
    new = [document(name, f"v{n}", size=n * 2**40) for n, name in enumerate(names)]
    world.enqueue(*new)
    items = world.hold("worker").items
    assert [(n.source_id, n.source_version, n.size, n.locator) for n in new] == [
        (i.source_id, i.source_version, i.size, i.locator) for i in items
    ]
    assert {(i.attempt, i.generation, i.failures, i.losses) for i in items} == {(1, 1, 0, 0)}


def test_the_same_version_again_is_known(world: World) -> None:
    """One item however often it is enqueued; each further request is counted."""
    world.enqueue("a", "b")
    before = world.tallies
    assert Enqueued(new=1, known=2) == world.enqueue("a", "b", "c")
    assert moved(before, world.tallies) == {"total": 1, "ready": 1, "known": 2}


@pytest.mark.parametrize("state", ["ready", "leased", "delayed", "dead_lettered"])
def test_a_known_uncommitted_item_gets_the_new_locator(world: World, state: str) -> None:
    """The bytes may have moved; the state stays what it was."""
    world.worker()
    world.enqueue("a")
    if state != "ready":
        lease = world.hold("worker")
        if state != "leased":
            world.fail("worker", lease, final=state == "dead_lettered")
    before = world.tallies
    world.enqueue(document("a", root="file:///moved"))
    found = world.ledger.lookup(world.run, "a")
    assert found is not None
    assert found.locator == "file:///moved/a"
    assert found.state is State(state)
    assert moved(before, world.tallies) == {"known": 1}


def test_a_completed_item_keeps_its_locator(world: World) -> None:
    """What a result was made from is not rewritten afterwards."""
    world.worker()
    world.enqueue("a")
    world.commit("worker", world.hold("worker"))
    assert Enqueued(known=1) == world.enqueue(document("a", root="file:///moved"))
    found = world.ledger.lookup(world.run, "a")
    assert found is not None
    assert (found.locator, found.state) == ("file:///docs/a", State.COMPLETED)


def test_changed_bytes_supersede_a_ready_item(world: World) -> None:
    """The old version leaves the total; only the new one is handed out."""
    world.worker()
    world.enqueue("a")
    before = world.tallies
    assert Enqueued(new=1, superseded=1) == world.enqueue(document("a", "v2"))
    assert moved(before, world.tallies) == {"superseded": 1}
    [item] = world.hold("worker").items
    assert item.source_version == "sha256:v2"


def test_changed_bytes_supersede_a_delayed_item(world: World) -> None:
    """A delayed item that is superseded never comes back."""
    world.worker()
    world.enqueue("a")
    world.fail("worker", world.hold("worker"))
    before = world.tallies
    assert Enqueued(new=1, superseded=1) == world.enqueue(document("a", "v2"))
    assert moved(before, world.tallies) == {"superseded": 1, "delayed": -1}
    world.clock.advance(Policy().max_backoff)
    [item] = world.hold("worker").items
    assert item.source_version == "sha256:v2"


def test_changed_bytes_supersede_a_leased_item_and_fence_its_holder(world: World) -> None:
    """A result made from outdated bytes is not committed."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    before = world.tallies
    assert Enqueued(new=1, superseded=1) == world.enqueue(document("a", "v2"))
    assert moved(before, world.tallies) == {"superseded": 1, "leased": -1, "ready": 1}
    assert world.commit("worker", lease).fenced == (lease.items[0].id,)
    assert world.state("a") is State.READY
    world.check_accounting()


def test_changed_bytes_supersede_a_dead_letter(world: World) -> None:
    """A repaired document is worth another beginning."""
    world.worker()
    world.dead_letter("a", "worker")
    before = world.tallies
    assert Enqueued(new=1, superseded=1) == world.enqueue(document("a", "v2"))
    assert moved(before, world.tallies) == {"superseded": 1, "dead_lettered": -1, "ready": 1}
    assert world.ledger.dead_letters(world.run, 0, 10) == []


def test_changed_bytes_leave_a_completed_item_as_it_is(world: World) -> None:
    """A committed result is never undone; the new version is a second item."""
    world.worker()
    world.enqueue("a")
    world.commit("worker", world.hold("worker"))
    before = world.tallies
    assert Enqueued(new=1) == world.enqueue(document("a", "v2"))
    assert moved(before, world.tallies) == {"total": 1, "ready": 1}
    assert len(world.ledger.results(world.run, 0, 10)) == 1


def test_a_superseded_item_named_again_begins_anew(world: World) -> None:
    """v1, v2, v1: v1 is due at once as a second generation, and v2 is superseded."""
    world.worker()
    world.enqueue("a")
    world.fail("worker", world.hold("worker"))
    world.enqueue(document("a", "v2"))
    before = world.tallies
    assert Enqueued(known=1, superseded=1) == world.enqueue(document("a", root="file:///docs"))
    assert moved(before, world.tallies) == {"known": 1, "delayed": 1}
    [item] = world.hold("worker").items
    assert (item.source_version, item.generation, item.attempt) == ("sha256:v1", 2, 2)
    assert (item.failures, item.losses) == (0, 0)
    world.check_accounting()


def test_a_completed_version_named_again_supersedes_the_uncommitted_one(world: World) -> None:
    """v1 committed, v2 waiting, v1 named again: v1 is known, v2 superseded."""
    world.worker()
    world.enqueue("a")
    world.commit("worker", world.hold("worker"))
    world.enqueue(document("a", "v2"))
    before = world.tallies
    assert Enqueued(known=1, superseded=1) == world.enqueue("a")
    assert moved(before, world.tallies) == {"total": -1, "ready": -1, "superseded": 1, "known": 1}
    assert world.state("a") is State.COMPLETED
    assert world.claim("worker") is None


def test_the_last_of_many_versions_is_the_current_one(world: World) -> None:
    """v1, v2, v1, v2, v3: one item in the total, the rest superseded."""
    for version in ("v1", "v2", "v1", "v2", "v3"):
        world.enqueue(document("a", version))
    tallies = world.check_accounting()
    assert (tallies.total, tallies.superseded) == (1, 2)
    found = world.ledger.lookup(world.run, "a")
    assert found is not None
    assert found.source_version == "sha256:v3"


def test_superseding_from_another_root_is_rejected_by_name(world: World) -> None:
    """Two folders that claim one id are a mistake, until somebody says otherwise."""
    world.enqueue("a")
    before = world.tallies
    answer = world.enqueue(document("a", "v2", root="file:///other"), "b")
    assert (answer.new, answer.superseded) == (1, 0)
    [rejection] = answer.rejected
    assert rejection.source == "a"
    assert "file:///docs" in rejection.reason
    assert "file:///other" in rejection.reason
    assert moved(before, world.tallies) == {"total": 1, "ready": 1}


def test_superseding_from_another_root_needs_replace(world: World) -> None:
    """With `replace` the document moves to the new root, and stays there."""
    world.enqueue("a")
    other = document("a", "v2", root="file:///other")
    assert Enqueued(new=1, superseded=1) == world.enqueue(other, replace=True)
    [rejection] = world.enqueue(document("a", "v3")).rejected
    assert rejection.source == "a"
    assert Enqueued(new=1, superseded=1) == world.enqueue(document("a", "v3", root="file:///other"))


def test_documents_of_one_batch_have_roots_of_their_own(world: World) -> None:
    """Each may be superseded from where it came."""
    world.enqueue(document("a", root="file:///one"), document("b", root="file:///other"))
    changed = [document(name, "v2", root="file:///other") for name in ("a", "b")]
    answer = world.enqueue(*changed)
    assert (answer.new, answer.superseded) == (1, 1)
    assert [rejection.source for rejection in answer.rejected] == ["a"]


def test_the_same_bytes_from_another_root_are_known(world: World) -> None:
    """Identity is the bytes': a copy elsewhere is no conflict, and takes nothing over."""
    world.enqueue("a")
    assert Enqueued(known=1) == world.enqueue(document("a", root="file:///copy"))
    assert Enqueued(new=1, superseded=1) == world.enqueue(document("a", "v2"))


def test_naming_a_document_twice_in_one_batch_is_rejected(world: World) -> None:
    """The second of two documents with one id is rejected by name, never in silence."""
    answer = world.enqueue(document("a"), document("b"), document("a", "v2"))
    assert (answer.new, answer.superseded) == (2, 0)
    [rejection] = answer.rejected
    assert (rejection.source, rejection.reason) == ("a", "named twice in this enqueue")
    found = world.ledger.lookup(world.run, "a")
    assert found is not None
    assert found.source_version == "sha256:v1"


def test_naming_the_same_bytes_twice_in_one_batch_is_rejected_too(world: World) -> None:
    """Equal bytes or not, one enqueue names a document once."""
    answer = world.enqueue("a", "a")
    assert (answer.new, answer.known, len(answer.rejected)) == (1, 0, 1)


def test_naming_a_document_in_two_batches_of_one_process_is_rejected(world: World) -> None:
    """Also when the first naming found a known item, and whatever lies between."""
    world.enqueue("known")
    world.register("e", Role.ENQUEUER)
    assert world.ledger.enqueue("e", 1, [document("known"), document("a")]).known == 1
    world.ledger.enqueue("e", 2, [document("b")])
    answer = world.ledger.enqueue("e", 3, [document("known", "v2"), document("a"), document("c")])
    assert answer.new == 1
    assert [r.source for r in answer.rejected] == ["known", "a"]


def test_another_process_may_name_it_again(world: World) -> None:
    """The next enqueue of a changed folder is the ordinary case."""
    world.enqueue("a")
    assert world.enqueue(document("a", "v2")).rejected == ()


def test_batches_of_one_process_go_forward_only(world: World) -> None:
    """An old batch number is a mistake of the caller, not a new batch."""
    world.register("e", Role.ENQUEUER)
    world.ledger.enqueue("e", 5, [document("a")])
    with pytest.raises(UsageError, match="batch 4"):
        world.ledger.enqueue("e", 4, [document("b")])
    assert world.tallies.total == 1


def test_a_stopped_or_reaped_enqueuer_may_go_on(world: World) -> None:
    """Nothing of an enqueuer is fenced; its items are in the total all the same."""
    world.register("stopped", Role.ENQUEUER)
    world.ledger.stop("stopped", "end")
    world.register("reaped", Role.ENQUEUER)
    assert world.lose("reaped").workers == ("reaped",)
    world.ledger.enqueue("stopped", 1, [document("a")])
    world.ledger.enqueue("reaped", 1, [document("b")])
    assert world.check_accounting().ready == 2


def test_a_large_batch_is_taken_up_whole(world: World) -> None:
    """No statement's limit on parameters shows."""
    world.enqueue("d00001", document("d00002", "old"))
    number = 5_000 if world.backend.swift else 500
    names = [document(f"d{n:05}") for n in range(number)]
    assert Enqueued(new=number - 1, known=1, superseded=1) == world.enqueue(*names)
    assert world.tallies.total == number


def test_an_item_longer_than_any_index_entry_is_taken_up(world: World) -> None:
    """A path may have thousands of bytes."""
    long = "/".join(f"{n:0250}" for n in range(16))
    world.enqueue(long, document(long + "x"))
    assert Enqueued(known=1) == world.enqueue(long)
