"""The status of a run as people like to read it."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchq.redact import printable
from batchq.status import uptime_line
from batchq.words import command, counted, duration

__all__ = ["render_status", "stdout_console"]

MAX_WORKERS = 12
BAR_WIDTH = 40


def render_status(status: dict[str, Any], *, content: bool) -> RenderableType:
    """The document of `status.snapshot`; `content` with the duplicates of equal content."""
    items = status["items"]
    over = items["completed"] + items["dead_lettered"]
    parts: list[RenderableType] = [
        Text.assemble((printable(status["run"]), "bold"), f"  {status['processing_version']}"),
        _bar(over, items["total"]),
        _states(items),
        _pace(status),
        _repeats(status, content=content),
    ]
    if any(_worth_a_line(worker) for worker in status["workers"]):
        parts += [Text(), _workers(status["workers"])]
    if not status["exact"]:
        parts.append(Text("Counts are not exact while leases are open.", style="dim"))
    return Group(*parts)


def _bar(over: int, total: int) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    share = f"{over / total:.1%}" if total else "nothing enqueued"
    row.add_row(
        ProgressBar(
            total=max(1, total),
            completed=over,
            width=BAR_WIDTH,
            complete_style="cyan",
            finished_style="green",
        ),
        f"{over:,} of {total:,}",
        share,
    )
    return row


def _states(items: dict[str, int]) -> Text:
    dead = items["dead_lettered"]
    states = [
        _state_count(items["completed"], "completed", "green", _also(items["empty"], "empty")),
        _state_count(items["ready"], "ready", "", _also(items["delayed"], "delayed")),
        _state_count(items["leased"], "leased", "cyan"),
        _state_count(dead, counted(dead, "dead letter").split(" ", 1)[1], "red" if dead else ""),
    ]
    if items["superseded"]:
        states.append(_state_count(items["superseded"], "superseded", ""))
    return Text("   ").join(states)


def _state_count(number: int, name: str, style: str, detail: str = "") -> Text:
    return Text.assemble((f"{number:,}", f"bold {style}".strip()), f" {name}{detail}")


def _also(number: int, what: str) -> str:
    return f" ({number:,} {what})" if number else ""


def _pace(status: dict[str, Any]) -> Text:
    items, rate, eta = status["items"], status["rate_per_s"], status["eta_s"]
    if items["ready"] + items["leased"] == 0:
        return Text(_waits_for_enqueuers(status["workers"]) or _finished(status))
    if rate is None:
        alive = any(w["alive"] and w["role"] == "worker" for w in status["workers"])
        start = printable(command("worker", status["run"]))
        text = "no result yet" if alive else f"no worker is alive; start one: {start}"
    else:
        text = f"{rate:,.1f} items/s, about {duration(eta)} left"
    if status["oldest_lease_s"] is not None:
        text += f", oldest lease {duration(status['oldest_lease_s'])}"
    return Text(text)


def _repeats(status: dict[str, Any], *, content: bool) -> Text:
    duplicates, rework = status["duplicates"], status["rework"]
    same = duplicates["content"]
    known = [
        f"{duplicates['enqueue']:,} enqueued again",
        *([f"{'unknown' if same is None else f'{same:,}'} of equal content"] if content else []),
        f"{duplicates['adopted']:,} adopted",
        f"{duplicates['fenced']:,} fenced",
    ]
    if duplicates["divergent"] is not None:
        known.append(f"{duplicates['divergent']:,} divergent")
    again = [
        counted(rework["attempts"], "attempt"),
        f"{counted(rework['lost_leases'], 'lease')} lost",
        f"{rework['interrupted']:,} interrupted",
        counted(rework["failures"], "failure"),
    ]
    lines = [f"duplicates  {', '.join(known)}", f"rework      {', '.join(again)}"]
    lines.append(f"uptime      {uptime_line(status['interruptions'])}")
    return Text("\n".join(lines))


def _finished(status: dict[str, Any]) -> str:
    if not status["items"]["dead_lettered"]:
        return "nothing left to do"
    why = printable(command("failures", status["run"]))
    return f"nothing left to do; why there are dead letters: {why}"


def _waits_for_enqueuers(processes: list[dict[str, Any]]) -> str:
    """Why workers stay though nothing is left; empty if they need not."""
    ages = [p["beat_age_s"] for p in processes if p["alive"] and p["role"] == "enqueuer"]
    if not ages:
        return ""
    who = "an enqueue is" if len(ages) == 1 else f"{len(ages)} enqueues are"
    return (
        f"nothing left to do, but {who} under way, last heard of {duration(min(ages))} ago; "
        "workers wait for what may still come"
    )


def _workers(workers: list[dict[str, Any]]) -> RenderableType:
    """The live ones first, then the latest of the others."""
    newest = sorted(workers, key=lambda w: (w["alive"], w["registered_at"]), reverse=True)
    shown = [worker for worker in newest if _worth_a_line(worker)][:MAX_WORKERS]
    table = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left")
    table.add_column("process", overflow="fold")
    table.add_column("state")
    table.add_column("held", justify="right")
    table.add_column("committed", justify="right")
    table.add_column("last beat", justify="right")
    for worker in shown:
        table.add_row(
            printable(worker["id"]),
            _state(worker),
            f"{worker['held']:,}",
            f"{worker['committed']:,}",
            f"{duration(worker['beat_age_s'])} ago",
        )
    if len(newest) > len(shown):
        left = len(newest) - len(shown)
        table.caption = f"and {left:,} more {'process' if left == 1 else 'processes'} in --json"
    return table


def _worth_a_line(worker: dict[str, Any]) -> bool:
    return bool(worker["alive"]) or worker["role"] == "worker"


def _state(worker: dict[str, Any]) -> str:
    if worker["state"] == "live" and not worker["alive"]:
        return "silent, its leases are about to pass on"
    reason = worker["stop_reason"]
    return f"{worker['state']}: {printable(reason)}" if reason else str(worker["state"])


def stdout_console(*, redrawn: bool = False) -> Console:
    """Prints data as it is: no markup is read into it, and no line is broken.

    Unless it is `redrawn` in place, where what is wider than the terminal would be cut off.
    """
    return Console(highlight=False, markup=False, soft_wrap=not redrawn)
